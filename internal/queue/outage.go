package queue

import (
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
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

func (o *outage) failed(log logr.Logger, err error) {
	now := time.Now()
	o.failures++
	const message = "SQS fails, trying again"
	switch {
	case o.failures == 1:
		logging.Warn(log, message, "error", err, "what", o.name)
		o.since, o.logged = now, now
	case now.Sub(o.logged) >= outageLogged:
		log.Error(err, message, "what", o.name, "failures", o.failures)
		o.logged = now
	}
}

func (o *outage) ended(log logr.Logger) {
	if o.failures == 0 {
		return
	}
	log.Info("SQS works again",
		"what", o.name, "failures", o.failures, "after", time.Since(o.since).Round(time.Second).String())
	*o = outage{name: o.name}
}
