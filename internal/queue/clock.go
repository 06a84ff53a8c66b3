package queue

import (
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
)

// clocksDiffer is by how much our clock has to be off to be told of. It is more
// than an answer can be late, see pollGrace, and less than anything that goes by
// the time of a notice can bear.
const clocksDiffer = 15 * time.Second

// compareClocks looks at what SQS says the time is, and logs when our clock begins
// or ceases to be wrong. The SDK signs by SQS's clock where ours is minutes off,
// but deadlines come from the times of events, and are kept by ours.
func (s *Server) compareClocks(answer middleware.Metadata) {
	theirs, told := awsmiddleware.GetServerTime(answer)
	ours, known := awsmiddleware.GetResponseAt(answer)
	if !told || !known {
		return
	}
	ahead := ours.Sub(theirs).Round(time.Second)
	wrong := ahead.Abs() >= clocksDiffer
	s.mu.Lock()
	before := s.clockWrong
	s.clockWrong = wrong
	s.mu.Unlock()
	switch {
	case wrong && !before:
		s.Log.Info("the clock of this node is not that of AWS: deadlines of notices are kept as much too early or too late", "ahead", ahead.String())
	case !wrong && before:
		s.Log.Info("the clock of this node is that of AWS again")
	}
}
