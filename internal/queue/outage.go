package queue

import (
	"log/slog"
	"time"
)

// outageLogged is how often an outage is logged while it lasts.
const outageLogged = time.Minute

// outage logs calls that fail again and again: the first failure as a warning, then one
// error a minute, then the end. It is not safe for concurrent use.
type outage struct {
	name     string // of the call that fails
	since    time.Time
	logged   time.Time
	failures int
}

func (o *outage) failed(log *slog.Logger, err error) {
	now := time.Now()
	o.failures++
	say := log.Error
	if o.failures == 1 {
		say, o.since = log.Warn, now
	} else if now.Sub(o.logged) < outageLogged {
		return
	}
	o.logged = now
	say("SQS fails, trying again", "error", err, "what", o.name, "failures", o.failures)
}

func (o *outage) ended(log *slog.Logger) {
	if o.failures == 0 {
		return
	}
	log.Info("SQS works again",
		"what", o.name, "failures", o.failures, "after", time.Since(o.since).Round(time.Second).String())
	*o = outage{name: o.name}
}
