package e2e

import (
	"testing"
	"time"
)

func TestASpotWarningDrainsItsNodeAndNoOther(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	s.deployment("web", 6)
	s.leader()
	sent := time.Now()
	message := s.send(s.body("spot-interruption", nodes[0].instance))
	s.awaitDeleted(soon, message)
	t.Logf("deleted after %s", s.deleted(message).Sub(sent))
	s.drainedBefore(message, nodes[0])
	s.untouched(nodes[1], 2)
	s.untouched(nodes[2], 2)
	s.eventually("all pods are ready elsewhere", func() bool { return s.readyReplicas("web") == 6 })
}
