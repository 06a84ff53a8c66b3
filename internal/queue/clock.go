package queue

import (
	"sync"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// clocksDiffer is the least difference between our clock and that of AWS that is logged.
// It is more than a response can be late, see pollGrace, and less than what deadlines
// can bear.
const clocksDiffer = 15 * time.Second

// A clock is that of this node, beside SQS's. It may be used concurrently.
type clock struct {
	mu    sync.Mutex
	wrong bool // at the last look
}

// compare compares our clock with the time in a response of SQS. It logs when our clock has
// become wrong, or right again. The SDK corrects its signatures if our clock is minutes off.
// But deadlines come from the times of events, and are kept by our clock.
func (c *clock) compare(log logr.Logger, answer middleware.Metadata) {
	theirs, told := awsmiddleware.GetServerTime(answer)
	ours, known := awsmiddleware.GetResponseAt(answer)
	if !told || !known {
		return
	}
	ahead := ours.Sub(theirs).Round(time.Second)
	wrong := ahead.Abs() >= clocksDiffer
	c.mu.Lock()
	before := c.wrong
	c.wrong = wrong
	c.mu.Unlock()
	switch {
	case wrong && !before:
		logging.Warn(log, "the clock of this node differs from that of AWS: "+
			"deadlines of notices are kept too early or too late by as much", "ahead", ahead.String())
	case !wrong && before:
		log.Info("the clock of this node agrees with that of AWS again")
	}
}
