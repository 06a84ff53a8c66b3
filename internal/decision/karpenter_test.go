package decision

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestWhoDrainsANode(t *testing.T) {
	pool := map[string]string{NodePoolLabel: "pool"}
	entry := func(by intent.By) intent.Entry {
		return intent.Entry{Kind: notice.SpotInterruption, Terms: intent.Terms{Rule: "r", By: by}}
	}
	cordon := intent.Entry{Kind: notice.RebalanceRecommendation, Terms: intent.Terms{Rule: "r", CordonOnly: true}}
	for name, tt := range map[string]struct {
		off     bool
		labels  map[string]string
		entries []intent.Entry
		asked   bool
		want    intent.By
		why     Why
	}{
		"Karpenter its own node":                 {labels: pool, entries: []intent.Entry{entry("")}, want: intent.ByKarpenter, why: WhyDelegated},
		"and where a rule says so":               {labels: pool, entries: []intent.Entry{entry(intent.ByKarpenter)}, want: intent.ByKarpenter, why: WhyDelegated},
		"no other node":                          {entries: []intent.Entry{entry(intent.ByKarpenter)}, want: intent.ByHandler},
		"none without the option":                {off: true, labels: pool, entries: []intent.Entry{entry("")}, want: intent.ByHandler},
		"not even by a rule":                     {off: true, labels: pool, entries: []intent.Entry{entry(intent.ByKarpenter)}, want: intent.ByHandler, why: WhyKarpenterOff},
		"none against a rule":                    {labels: pool, entries: []intent.Entry{entry(intent.ByHandler)}, want: intent.ByHandler, why: WhyRuleByHandler},
		"nor against one of two rules":           {labels: pool, entries: []intent.Entry{entry(intent.ByKarpenter), entry(intent.ByHandler)}, want: intent.ByHandler, why: WhyRuleByHandler},
		"but it goes on with what it was asked":  {labels: pool, entries: []intent.Entry{entry(intent.ByHandler)}, asked: true, want: intent.ByKarpenter, why: WhyDelegated},
		"none that is only cordoned":             {labels: pool, entries: []intent.Entry{cordon}, want: intent.ByHandler},
		"one that is drained for another notice": {labels: pool, entries: []intent.Entry{cordon, entry("")}, want: intent.ByKarpenter, why: WhyDelegated},
	} {
		t.Run(name, func(t *testing.T) {
			i := intent.Intent{Entries: tt.entries}
			if tt.asked {
				i.DelegatedAt = now
			}
			by, why := Policy{DrainByKarpenter: !tt.off, NodeGracePeriod: time.Minute}.Drains(i, tt.labels)
			if by != tt.want || why != tt.why {
				t.Errorf("%s, %q; want %s, %q", by, why, tt.want, tt.why)
			}
		})
	}
}

func TestTheTimeThatKarpenterHas(t *testing.T) {
	dated := intent.Intent{Entries: []intent.Entry{{Kind: notice.SpotInterruption, Deadline: at(120)}}}
	patient := intent.Intent{Entries: []intent.Entry{{Kind: notice.ScheduledChange, Deadline: at(7200), Terms: intent.Terms{Patient: true}}}}
	undated := intent.Intent{Entries: []intent.Entry{{Kind: notice.RebalanceRecommendation}}}
	if got := KarpenterDeadline(dated); !got.Equal(at(113)) {
		t.Errorf("with a deadline it is %s", got)
	}
	for _, i := range []intent.Intent{patient, undated} {
		if got := KarpenterDeadline(i); !got.IsZero() {
			t.Errorf("where nothing is forced it is %s", got)
		}
	}
	if got := KarpenterBeginsBy(dated, at(1), at(2), policy); !got.Equal(at(6)) {
		t.Errorf("an urgent drain begins by %s", got)
	}
	if got := KarpenterBeginsBy(undated, at(1), at(2), policy); !got.Equal(at(61)) {
		t.Errorf("a drain that can wait begins by %s", got)
	}
}
