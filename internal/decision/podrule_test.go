package decision

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// labelled selects what has a label, or an annotation.
func labelled(key, value string) []Selector {
	return []Selector{{{Key: key, Operator: In, Values: []string{value}}}}
}

func TestThePodsTurn(t *testing.T) {
	now := time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)
	file := []PodRule{
		{Name: "shippers", DaemonSets: true, Pods: labelled("app", "shipper"), Leave: LeaveEnd},
		{Name: "databases", Namespaces: []string{"data-*"}, Leave: LeaveAfter, Order: 10},
		{Name: "jobs", Annotations: labelled("kind", "job"), Leave: LeaveLast},
		{Name: "surging", Pods: labelled("app", "db"), Leave: LeaveSurged},
		{Name: "agents", DaemonSets: true, Pods: labelled("app", "agent"), Leave: LeaveSurged},
		{Name: "web", Pods: labelled("app", "web"), Leave: LeaveNow},
		{Name: "batch", Pods: labelled("app", "batch"), Leave: LeaveNever},
		{Name: "daemons", DaemonSets: true, Pods: labelled("app", "batch"), Leave: LeaveNever},
	}
	with := func(key, value string) map[string]string { return map[string]string{key: value} }
	for name, tt := range map[string]struct {
		rules       []PodRule
		pod         Pod
		hasDeadline bool
		want        Turn
	}{
		"most pods leave now":                      {want: Turn{}},
		"also where there are rules for others":    {rules: file, want: Turn{}},
		"the pods of a DaemonSet stay":             {rules: file, pod: Pod{DaemonSet: true}, want: Turn{Stays: true}},
		"unless a rule says when they leave":       {rules: file, pod: Pod{DaemonSet: true, Labels: with("app", "shipper")}, want: Turn{Leave: LeaveEnd, Why: "shippers"}},
		"which is about no others":                 {rules: file, pod: Pod{Labels: with("app", "shipper")}, want: Turn{}},
		"nor are rules about others about them":    {rules: file, pod: Pod{DaemonSet: true, Namespace: "data-eu"}, want: Turn{Stays: true}},
		"a rule has an order":                      {rules: file, pod: Pod{Namespace: "data-eu"}, want: Turn{Leave: LeaveAfter, Order: 10, Why: "databases"}},
		"the first one decides":                    {rules: file, pod: Pod{Namespace: "data-eu", Annotations: with("kind", "job")}, want: Turn{Leave: LeaveAfter, Order: 10, Why: "databases"}},
		"rules look at annotations, too":           {rules: file, pod: Pod{Annotations: with("kind", "job")}, hasDeadline: true, want: Turn{Leave: LeaveLast, Why: "jobs"}},
		"a rule decides before the owner":          {rules: file, pod: Pod{Labels: with("app", "web"), Annotations: with(LeaveAnnotation, "last")}, want: Turn{Why: "web"}},
		"and before other annotations":             {rules: file, pod: Pod{Labels: with("app", "web"), Annotations: with(DoNotDisruptAnnotation, "true")}, want: Turn{Why: "web"}},
		"the owner may say first":                  {pod: Pod{Annotations: with(LeaveAnnotation, "first")}, want: Turn{Leave: LeaveFirst, Why: LeaveAnnotation}},
		"or last, also with a deadline":            {pod: Pod{Annotations: with(LeaveAnnotation, "last")}, hasDeadline: true, want: Turn{Leave: LeaveLast, Why: LeaveAnnotation}},
		"or surged":                                {pod: Pod{Annotations: with(LeaveAnnotation, "surged")}, want: Turn{Leave: LeaveSurged, Why: LeaveAnnotation, Surges: true}},
		"a rule alone begins no rollout":           {rules: file, pod: Pod{Labels: with("app", "db")}, want: Turn{Leave: LeaveSurged, Why: "surging"}},
		"nor with another word of the owner":       {rules: file, pod: Pod{Labels: with("app", "db"), Annotations: with(LeaveAnnotation, "last")}, want: Turn{Leave: LeaveSurged, Why: "surging"}},
		"it does with the owner's consent":         {rules: file, pod: Pod{Labels: with("app", "db"), Annotations: with(LeaveAnnotation, "surged")}, want: Turn{Leave: LeaveSurged, Why: "surging", Surges: true}},
		"which counts for nothing elsewhere":       {rules: file, pod: Pod{Labels: with("app", "web"), Annotations: with(LeaveAnnotation, "surged")}, want: Turn{Why: "web"}},
		"a DaemonSet begins none":                  {rules: file, pod: Pod{DaemonSet: true, Labels: with("app", "agent"), Annotations: with(LeaveAnnotation, "surged")}, want: Turn{Leave: LeaveSurged, Why: "agents"}},
		"or now, whatever Karpenter does":          {pod: Pod{Annotations: map[string]string{LeaveAnnotation: "now", DoNotDisruptAnnotation: "true"}}, want: Turn{Why: LeaveAnnotation}},
		"the owner of a DaemonSet may say end":     {pod: Pod{DaemonSet: true, Annotations: with(LeaveAnnotation, "end")}, want: Turn{Leave: LeaveEnd, Why: LeaveAnnotation}},
		"what Karpenter does not disrupt is last":  {pod: Pod{Annotations: with(DoNotDisruptAnnotation, "true")}, want: Turn{Leave: LeaveLast, Why: DoNotDisruptAnnotation}},
		"not with a deadline":                      {pod: Pod{Annotations: with(DoNotDisruptAnnotation, "true")}, hasDeadline: true, want: Turn{}},
		"for as long as it says":                   {pod: Pod{Started: now.Add(-time.Minute), Annotations: with(DoNotDisruptAnnotation, "30m")}, want: Turn{Leave: LeaveLast, Why: DoNotDisruptAnnotation, Until: now.Add(29 * time.Minute)}},
		"and no longer":                            {pod: Pod{Started: now.Add(-30 * time.Minute), Annotations: with(DoNotDisruptAnnotation, "30m")}, want: Turn{}},
		"which has not begun before the pod":       {pod: Pod{Annotations: with(DoNotDisruptAnnotation, "30m")}, want: Turn{Leave: LeaveLast, Why: DoNotDisruptAnnotation}},
		"a false one means nothing":                {pod: Pod{Annotations: with(DoNotDisruptAnnotation, "false")}, want: Turn{}},
		"nor does a time that is none":             {pod: Pod{Annotations: with(DoNotDisruptAnnotation, "-5m")}, want: Turn{}},
		"what is not safe to evict is last":        {pod: Pod{Annotations: with(SafeToEvictAnnotation, "false")}, want: Turn{Leave: LeaveLast, Why: SafeToEvictAnnotation}},
		"not with a deadline either":               {pod: Pod{Annotations: with(SafeToEvictAnnotation, "false")}, hasDeadline: true, want: Turn{}},
		"what is safe to evict leaves now":         {pod: Pod{Annotations: with(SafeToEvictAnnotation, "true")}, want: Turn{}},
		"neither is about the pods of a DaemonSet": {pod: Pod{DaemonSet: true, Annotations: map[string]string{SafeToEvictAnnotation: "false", DoNotDisruptAnnotation: "true"}}, want: Turn{Stays: true}},
		"the time of one over, the other counts":   {pod: Pod{Started: now.Add(-time.Hour), Annotations: map[string]string{SafeToEvictAnnotation: "false", DoNotDisruptAnnotation: "30m"}}, want: Turn{Leave: LeaveLast, Why: SafeToEvictAnnotation}},
		"a rule lets a pod stay":                   {rules: file, pod: Pod{Labels: with("app", "batch")}, hasDeadline: true, want: Turn{Leave: LeaveNever, Stays: true, Why: "batch"}},
		"also one of a DaemonSet":                  {rules: file, pod: Pod{DaemonSet: true, Labels: with("app", "batch"), Annotations: with(LeaveAnnotation, "end")}, want: Turn{Leave: LeaveNever, Stays: true, Why: "daemons"}},
		"and so may its owner":                     {pod: Pod{Annotations: with(LeaveAnnotation, "never")}, hasDeadline: true, want: Turn{Leave: LeaveNever, Stays: true, Why: LeaveAnnotation}},
		"in the words of Cluster API, too":         {pod: Pod{Labels: with(DrainLabel, "skip")}, hasDeadline: true, want: Turn{Leave: LeaveNever, Stays: true, Why: DrainLabel}},
		"to the end of its work":                   {pod: Pod{Labels: with(DrainLabel, "wait-completed")}, hasDeadline: true, want: Turn{Leave: LeaveLast, Why: DrainLabel}},
		"which a DaemonSet has not":                {pod: Pod{DaemonSet: true, Labels: with(DrainLabel, "wait-completed")}, want: Turn{Stays: true}},
		"however it is spelt":                      {pod: Pod{Labels: with(DrainLabel, "Skip")}, want: Turn{Leave: LeaveNever, Stays: true, Why: DrainLabel}},
		"of which others have no meaning":          {pod: Pod{Labels: with(DrainLabel, "true")}, want: Turn{}},
		"a rule decides before them":               {rules: file, pod: Pod{Labels: map[string]string{"app": "web", DrainLabel: "skip"}}, want: Turn{Why: "web"}},
		"a value without a meaning is told":        {pod: Pod{Annotations: with(LeaveAnnotation, "Last")}, want: Turn{Mistake: `its annotation node-termination-handler/leave: "Last" is ignored: it is none of now, first, last, end, surged, never`}},
		"and counts as none":                       {pod: Pod{Annotations: map[string]string{LeaveAnnotation: "", SafeToEvictAnnotation: "false"}}, want: Turn{Leave: LeaveLast, Why: SafeToEvictAnnotation, Mistake: `its annotation node-termination-handler/leave: "" is ignored: it is none of now, first, last, end, surged, never`}},
		"an owner knows no order":                  {pod: Pod{Annotations: with(LeaveAnnotation, "after")}, want: Turn{Mistake: `its annotation node-termination-handler/leave: "after" is ignored: it is none of now, first, last, end, surged, never`}},
		"and that of a DaemonSet knows the end":    {pod: Pod{DaemonSet: true, Annotations: with(LeaveAnnotation, "first")}, want: Turn{Stays: true, Mistake: `its annotation node-termination-handler/leave: "first" is ignored: a pod of a DaemonSet can only leave at the end or never`}},
		"of a long value the beginning is told":    {pod: Pod{Annotations: with(LeaveAnnotation, strings.Repeat("x", 1000))}, want: Turn{Mistake: `its annotation node-termination-handler/leave: "` + strings.Repeat("x", 40) + `…" is ignored: it is none of now, first, last, end, surged, never`}},
		"a mistake does not matter to a rule":      {rules: file, pod: Pod{Labels: with("app", "web"), Annotations: with(LeaveAnnotation, "x")}, want: Turn{Why: "web"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Rules{Pods: tt.rules}.TurnOf(tt.pod, tt.hasDeadline, now)); diff != "" {
				t.Errorf("turn (-want +got):\n%s", diff)
			}
		})
	}
}

func TestADepartureIsReadBackFromItsName(t *testing.T) {
	for leave := LeaveNow; leave <= LeaveNever; leave++ {
		if got, ok := DepartureOf(leave.String()); !ok || got != leave {
			t.Errorf("%s is read as %s, %t", leave, got, ok)
		}
	}
}

// A drain keeps of a pod what these keys name, and no more.
func TestTheKeysOfTheRulesAreAllThatATurnNeeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{"a", "b", "c", DrainLabel, LeaveAnnotation, DoNotDisruptAnnotation, SafeToEvictAnnotation}
		values := rapid.SampledFrom([]string{"true", "false", "last", "first", "never", "skip", "wait-completed", "5m", "x"})
		some := func(name string) map[string]string {
			return rapid.MapOf(rapid.SampledFrom(keys), values).Draw(t, name)
		}
		selectors := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Selector {
			return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Requirement {
				r := Requirement{Key: rapid.SampledFrom(keys).Draw(t, "key"), Operator: Operator(rapid.IntRange(int(In), int(DoesNotExist)).Draw(t, "operator"))}
				if r.Operator == In || r.Operator == NotIn {
					r.Values = []string{values.Draw(t, "value")}
				}
				return r
			}), 1, 2).Draw(t, "requirements")
		}), 0, 2)
		rules := Rules{Pods: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) PodRule {
			return PodRule{
				Name: rapid.StringMatching("rule-[a-z]").Draw(t, "name"), Pods: selectors.Draw(t, "pods"), Annotations: selectors.Draw(t, "annotations"),
				DaemonSets: rapid.Bool().Draw(t, "DaemonSets"), Leave: Departure(rapid.IntRange(int(LeaveNow), int(LeaveNever)).Draw(t, "leave")),
			}
		}), 0, 4).Draw(t, "rules")}
		pod := Pod{Labels: some("labels"), Annotations: some("annotations"), DaemonSet: rapid.Bool().Draw(t, "of a DaemonSet")}
		labels, annotations := rules.PodKeys()
		only := func(all map[string]string, keys []string) map[string]string {
			kept := map[string]string{}
			for _, key := range keys {
				if value, there := all[key]; there {
					kept[key] = value
				}
			}
			return kept
		}
		small := pod
		small.Labels, small.Annotations = only(pod.Labels, labels), only(pod.Annotations, annotations)
		hasDeadline := rapid.Bool().Draw(t, "deadline")
		if diff := cmp.Diff(rules.TurnOf(pod, hasDeadline, time.Time{}), rules.TurnOf(small, hasDeadline, time.Time{})); diff != "" {
			t.Errorf("the turn of a pod that is cut to %v and %v:\n%s", labels, annotations, diff)
		}
	})
}

func BenchmarkTurnWith50Rules(b *testing.B) {
	var rules Rules
	for range 50 {
		rules.Pods = append(rules.Pods, PodRule{Name: "r", Pods: labelled("app", "other"), Namespaces: []string{"team-*"}, Leave: LeaveLast})
	}
	pod := Pod{Namespace: "team-a", Labels: map[string]string{"app": "web"}}
	b.ReportAllocs()
	for b.Loop() {
		rules.TurnOf(pod, true, time.Time{})
	}
}
