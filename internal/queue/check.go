package queue

import (
	"context"
	"time"
)

// checkTimeout bounds a check, including the time that STS takes for the first
// credentials. After more than that, people think that a start-up hangs.
const checkTimeout = 10 * time.Second

// redrive is what the server knows of the queue's redrive policy.
type redrive int32

const (
	redriveUnknown redrive = iota
	redriveAbsent
	redrivePresent
)

func (r redrive) String() string {
	switch r {
	case redriveUnknown:
		return "unknown"
	case redriveAbsent:
		return "absent"
	case redrivePresent:
		return "present"
	}
	return "unknown"
}

// Check is [Client.Check] of the queue that is served. The server remembers whether the
// queue has a redrive policy.
func (s *Server) Check(ctx context.Context) error {
	found, err := s.client().check(ctx, &s.clock)
	if err != nil || found == redriveUnknown {
		return err
	}
	s.redrive.Store(int32(found))
	return nil
}
