package decision

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestExcludes(t *testing.T) {
	of := func(kind notice.Kind) intent.Entry { return intent.Entry{Kind: kind} }
	change := func(code string) intent.Entry { return intent.Entry{Kind: notice.ScheduledChange, Code: code} }
	// Of a rule of the policy file, which has the last word.
	by := func(e intent.Entry, cordonOnly bool) intent.Entry {
		e.Rule, e.CordonOnly = "a rule", cordonOnly
		return e
	}
	const retirement, retirementOfEC2 = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "instance-retirement"
	auto, always, never := Policy{}, Policy{Exclusion: ExcludeAll}, Policy{Exclusion: ExcludeNone}
	cordons := Policy{CordonOnly: true}
	for name, tt := range map[string]struct {
		policy Policy
		with   []intent.Entry
		want   bool
	}{
		"a spot warning":                       {auto, []intent.Entry{of(notice.SpotInterruption)}, true},
		"capacity that is taken back":          {auto, []intent.Entry{of(notice.CapacityReservationInterruption)}, true},
		"a block that expires":                 {auto, []intent.Entry{of(notice.CapacityBlockExpiration)}, true},
		"an instance that stops":               {auto, []intent.Entry{of(notice.StateChange)}, true},
		"a termination hook":                   {auto, []intent.Entry{of(notice.ASGTerminate)}, true},
		"one from which the machine returns":   {auto, []intent.Entry{{Kind: notice.ASGTerminate, Returns: true}}, true},
		"a retirement, of AWS Health":          {auto, []intent.Entry{change(retirement)}, true},
		"a retirement, of EC2":                 {auto, []intent.Entry{change(retirementOfEC2)}, true},
		"not a reboot, of AWS Health":          {auto, []intent.Entry{change("AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED")}, false},
		"not a reboot, of EC2":                 {auto, []intent.Entry{change("system-reboot")}, false},
		"not a pause of the network":           {auto, []intent.Entry{change("AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED")}, false},
		"nor what does not say what it does":   {auto, []intent.Entry{change("system-maintenance")}, false},
		"nor a code that nobody knows":         {auto, []intent.Entry{change("AWS_EC2_SOMETHING_NEW")}, false},
		"not a rebalance recommendation":       {auto, []intent.Entry{of(notice.RebalanceRecommendation)}, false},
		"not an impaired instance":             {auto, []intent.Entry{of(notice.InstanceImpaired)}, false},
		"not a launch":                         {auto, []intent.Entry{of(notice.ASGLaunch)}, false},
		"nothing for nothing":                  {auto, nil, false},
		"one that ends it is enough":           {auto, []intent.Entry{of(notice.RebalanceRecommendation), of(notice.SpotInterruption)}, true},
		"cordoned only, it ends in minutes":    {cordons, []intent.Entry{of(notice.SpotInterruption)}, true},
		"so by a rule":                         {auto, []intent.Entry{by(of(notice.ASGTerminate), true)}, true},
		"cordoned only, it ends in days":       {cordons, []intent.Entry{change(retirement)}, false},
		"by a rule, too":                       {auto, []intent.Entry{by(change(retirement), true)}, false},
		"unless a rule drains it":              {cordons, []intent.Entry{by(change(retirement), false)}, true},
		"or another notice":                    {auto, []intent.Entry{by(change(retirement), true), of(notice.RebalanceRecommendation)}, true},
		"true: all kinds":                      {always, []intent.Entry{of(notice.RebalanceRecommendation)}, true},
		"true: also one that is only cordoned": {Policy{Exclusion: ExcludeAll, CordonOnly: true}, []intent.Entry{change("system-reboot")}, true},
		"false: none":                          {never, []intent.Entry{of(notice.SpotInterruption)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			i := intent.Intent{}
			for _, e := range tt.with {
				e.Time = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)
				i.Entries = append(i.Entries, e)
			}
			if got := tt.policy.Excludes(i); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// Each kind of notice is in the table above, also one that is added later.
func TestExcludesKnowsEachKind(t *testing.T) {
	want := map[notice.Kind]bool{
		notice.SpotInterruption: true, notice.RebalanceRecommendation: false, notice.StateChange: true,
		notice.ScheduledChange: false, notice.ASGTerminate: true, notice.ASGLaunch: false,
		notice.CapacityReservationInterruption: true, notice.CapacityBlockExpiration: true, notice.InstanceImpaired: false,
	}
	for _, kind := range notice.Kinds {
		excluded, known := want[kind]
		if got := (Policy{}).Excludes(intent.Intent{Entries: []intent.Entry{{Kind: kind}}}); !known || got != excluded {
			t.Errorf("%s: %v, want %v (%v)", kind, got, excluded, known)
		}
	}
}
