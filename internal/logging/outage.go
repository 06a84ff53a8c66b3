package logging

import (
	"time"

	"github.com/go-logr/logr"
)

// outageLogged is how often an outage is logged while it lasts.
const outageLogged = time.Minute

// An Outage logs calls that fail again and again: the first failure as a warning, then one error a minute, then the
// end. It is not safe for concurrent use.
type Outage struct {
	Fails, Works string // the messages
	What         string // the call that fails

	Failures int // in a row
	since    time.Time
	logged   time.Time
}

// Failed is called with the error of each call that fails.
func (o *Outage) Failed(log logr.Logger, err error) {
	now := time.Now()
	o.Failures++
	switch {
	case o.Failures == 1:
		Warn(log, o.Fails, "error", err, "what", o.What)
		o.since, o.logged = now, now
	case now.Sub(o.logged) >= outageLogged:
		log.Error(err, o.Fails, "what", o.What, "failures", o.Failures)
		o.logged = now
	}
}

// Ended is called after each call that succeeds.
func (o *Outage) Ended(log logr.Logger) {
	if o.Failures == 0 {
		return
	}
	log.Info(o.Works, "what", o.What, "failures", o.Failures, "after", time.Since(o.since).Round(time.Second).String())
	o.Failures = 0
}
