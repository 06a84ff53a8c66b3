package queue

import (
	"time"

	"github.com/go-logr/logr"
)

// outageLogged is how often an outage that goes on is logged.
const outageLogged = time.Minute

// outage logs something that fails again and again: the first failure, then a
// line a minute, then its end. One goroutine uses it.
type outage struct {
	name     string // of what fails
	since    time.Time
	logged   time.Time
	failures int
}

func (o *outage) failed(log logr.Logger, err error) {
	now := time.Now()
	o.failures++
	if o.failures == 1 {
		o.since = now
	} else if now.Sub(o.logged) < outageLogged {
		return
	}
	o.logged = now
	log.Error(err, "SQS fails, trying again", "what", o.name, "failures", o.failures)
}

func (o *outage) ended(log logr.Logger) {
	if o.failures == 0 {
		return
	}
	log.Info("SQS works again", "what", o.name, "failures", o.failures, "after", time.Since(o.since).Round(time.Second).String())
	*o = outage{name: o.name}
}
