package controller

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// The other instances of a large notice are nobody's, and EC2 does not answer about them.
func TestAnInstanceWithANodeDoesNotWaitForThoseWithout(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.ManagedTag = "" }
		var entities strings.Builder
		for k := range lookUpsAtOnce + 1 {
			fmt.Fprintf(&entities, `{"entityValue":"i-%017x"},`, k)
		}
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "Unavailable"}))
		s.lead()
		s.send(s.body("health-reboot-scheduled", theID, `"affectedEntities": [`, `"affectedEntities": [`+entities.String()))
		s.after(time.Minute)
		if !s.isCordoned(theNode) {
			t.Error("it is not cordoned")
		}
	})
}

// Nor for those of another message.
func TestAnInstanceWithANodeDoesNotWaitForThoseOfOtherMessages(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.ManagedTag = "" }
		var entities strings.Builder
		for k := range lookUpsAtOnce + 1 {
			fmt.Fprintf(&entities, `{"entityValue":"i-%017x"},`, k)
		}
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "Unavailable"}))
		s.lead()
		s.send(s.body("health-reboot-scheduled", "i-0fedcba9876543210", `"affectedEntities": [`, `"affectedEntities": [`+entities.String()))
		s.after(time.Minute)
		s.send(s.body("health-reboot-scheduled", theID, `"affectedEntities": [`, `"affectedEntities": [{"entityValue":"i-0fedcba9876543210"},`))
		s.after(time.Minute)
		if !s.isCordoned(theNode) {
			t.Error("it is not cordoned")
		}
	})
}

func TestFourThousandInstancesInOneMessageAreLookedUpInTurn(t *testing.T) {
	tell(t, func(s *story) {
		s.lead()
		before := runtime.NumGoroutine()
		var entities strings.Builder
		for k := range 4_000 {
			fmt.Fprintf(&entities, `{"entityValue":"i-%017x"},`, k)
		}
		begin := time.Now()
		s.send(s.body("health-retirement-two-instances", theID, `"affectedEntities": [`, `"affectedEntities": [`+entities.String()))
		most := 0
		for !s.node().Spec.Unschedulable && time.Since(begin) < time.Minute {
			s.after(100 * time.Millisecond)
			most = max(most, runtime.NumGoroutine()-before)
		}
		s.Logf("cordoned after %s, with %d more goroutines at most", time.Since(begin), most)
		if n := s.calls("DescribeInstances"); time.Since(begin) > 20*time.Second || n > 30 || most > 3*lookUpsAtOnce {
			t.Errorf("the one that is ours was cordoned after %s, %d look-ups and with %d more goroutines", time.Since(begin), n, most)
		}
		s.after(45 * time.Second)
		if s.left() != 1 || len(s.drain.all()) != 1 { // the others may be another cluster's
			t.Errorf("%d messages left after %d drains", s.left(), len(s.drain.all()))
		}
	})
}

// How an instance was bought is known to EC2 alone, whoever asked it: the controller, to look for the tag, because the notice
// is late, or because there is no Node; or somebody before, about another notice.
func TestANoticeAboutSpotIsVoidWhereEC2SaysThatTheInstanceIsNone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		untagged bool // the tag is not looked for
		before   func(*story)
		late     time.Duration // of the notice
		noNode   bool
	}{
		"the tag is looked for": {},
		"the notice is late":    {untagged: true, late: 3 * time.Minute, before: func(s *story) { s.after(5 * time.Minute) }},
		"EC2 was asked before": {untagged: true, before: func(s *story) {
			s.send(s.maintenance(24*time.Hour, `"upcoming"`, `"closed"`))
			s.after(10 * time.Second)
		}},
		"EC2 was asked before, and is silent": {untagged: true, late: 3 * time.Minute, before: func(s *story) {
			s.send(s.maintenance(24*time.Hour, `"upcoming"`, `"closed"`))
			s.after(10 * time.Minute)
			s.must(s.aws.SetFault(awssim.Fault{ID: "throttled", Action: "DescribeInstances", Code: "RequestLimitExceeded"}))
		}},
		"there is no Node": {noNode: true, before: func(s *story) { s.remove(theNode) }},
	} {
		for _, kind := range []string{"spot-interruption", "rebalance-recommendation"} {
			for lifecycle, acts := range map[string]bool{"": false, "spot": true} { // EC2 has no word for on demand
				t.Run(fmt.Sprintf("%s, %s, lifecycle %q", name, kind, lifecycle), func(t *testing.T) {
					t.Parallel()
					tell(t, func(s *story) {
						if tt.untagged {
							s.edit = func(c *Config) { c.ManagedTag = "" }
						}
						s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: lifecycle, ID: theID, Tags: map[string]string{"managed": ""}}))
						s.lead()
						if tt.before != nil {
							tt.before(s)
						}
						s.send(s.ago(tt.late, kind))
						s.after(40 * time.Second)
						switch {
						case tt.noNode && (s.left() > 0) != acts:
							t.Errorf("%d messages wait for a Node", s.left())
						case tt.noNode:
						case acts && (!s.node().Spec.Unschedulable || len(s.drain.all()) != 1):
							t.Errorf("a spot instance has %d drains: %+v", len(s.drain.all()), s.intent())
						case !acts:
							s.wantUntouched()
						}
					})
				})
			}
		}
	}
}

// Whoever may write to the queue says, as another account, that a change is over.
func TestTheEndOfAChangeThatIsNotOursKeepsNoNoticeAway(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(strings.Replace(s.maintenance(24*time.Hour, `"upcoming"`, `"closed"`), `"account": "123456789012"`, `"account": "210987654321"`, 1))
		s.after(time.Minute)
		s.send(s.maintenance(24 * time.Hour))
		s.after(time.Minute)
		if drains := len(s.drain.all()); drains != 1 {
			t.Errorf("%d drains, want one", drains)
		}
	})
}

// EC2 shows the role the instances of its own account alone.
func TestALateNoticeOfAnotherAccountIsDrainedFor(t *testing.T) {
	t.Parallel()
	for accounts, want := range map[string]int{"123456789012": 0, "123456789012,210987654321": 1} {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.Accounts = strings.Split(accounts, ",") }
			s.aws.RemoveInstance(theID)
			s.lead()
			at := time.Now().Add(-70 * time.Second).UTC().Format(time.RFC3339)
			s.send(strings.ReplaceAll(s.body("spot-interruption", theID), time.Now().UTC().Format(time.RFC3339), at))
			s.after(40 * time.Second)
			if drains := len(s.drain.all()); drains != want {
				t.Errorf("%s: %d drains, want %d", accounts, drains, want)
			}
		})
	}
}
