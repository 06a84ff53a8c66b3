package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const polledDoc = `
## What EC2 says only to those who ask

The leader asks EC2 once a minute (` + "`status-interval`" + `, on by default) for two things. It needs ` + "`ec2:DescribeInstanceStatus`" + `.

**Scheduled events**, of which AWS Health tells with best effort. They are handled as [scheduled changes](#scheduled-change), once, and
again if they are moved. One is over when EC2 calls it completed or cancelled, or has not listed it at two polls in a row, if
it has before or no pod on the node reports it.

**Impaired instances**: the instance status or the system status has been impaired for two minutes. By default the node only gets a
Warning Event, ` + "`InstanceImpaired`" + `. With ` + "`drain-impaired-instances`" + ` it is a notice:

| Situation | What happens | ` + "`why`" + ` |
|---|---|---|
%s
It is over if the node is ready, and EC2 has not listed the instance at two polls in a row. If several nodes are impaired, and they
are more than half of all, or more than five and more than a fifth, none is drained: a zone or the network may have failed.

If somebody uncordons a node that is drained for one of these, it is not drained for that again.
`

// polled is the doc of what no message tells.
func polled(t *testing.T) string {
	t.Helper()
	for code, want := range map[string]decision.Why{
		"instance-retirement": decision.WhyScheduledStop, "instance-stop": decision.WhyScheduledStop, "instance-reboot": decision.WhyScheduledReboot,
		"system-reboot": decision.WhyScheduledReboot, "system-maintenance": decision.WhyScheduledChange,
	} {
		n := notice.Notice{Kind: notice.ScheduledChange, Detail: code, Time: now, Deadline: now.Add(docLead)}
		if d := decision.Decide(n, decision.Facts{Ownership: decision.Ours, Now: now}, situation{}.of()); d.Why != want {
			t.Errorf("an event with the code %s has the reason %s, not %s", code, d.Why, want)
		}
	}
	var rows strings.Builder
	for _, s := range []struct {
		situation
		ended bool
	}{
		{ordinary[0], false},
		{ordinary[1], false},
		{situation{words: "it is not impaired any more", facts: decision.Facts{Ownership: decision.Ours, State: decision.Running}}, true},
	} {
		n := notice.Notice{Kind: notice.InstanceImpaired, Time: now.Add(-docAge), Ended: s.ended}
		s.facts.Now = now
		d := decision.Decide(n, s.facts, s.of())
		what := actionWords(n, d)
		if !d.Deadline.IsZero() {
			what += "; deadline: " + strings.Replace(deadlineWords(t, n, d), "the event", "the poll", 1)
		}
		fmt.Fprintf(&rows, "| %s | %s | `%s` |\n", s.words, what, d.Why)
	}
	return fmt.Sprintf(polledDoc, &rows)
}
