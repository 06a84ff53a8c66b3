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

With ` + "`status-interval`" + `, which is on by default, the leader asks EC2 once a minute for two things. It needs ` + "`ec2:DescribeInstanceStatus`" + `.

**Scheduled events.** AWS Health tells of them too, with best effort, and only if a rule sends its notices to the queue. An event of a node's
instance is handled as a [scheduled change](#scheduled-change), with the start of the event as the deadline:

| Code | ` + "`why`" + ` |
|---|---|
%s
An event is handled once, and again if it is moved. If AWS Health has told of it already, nothing is done, unless its owner moves it.
The change is over when EC2 calls the event completed or cancelled, or has not listed it at two polls in a row. If somebody has
uncordoned the node, the event is not handled again.

**Impaired instances.** The instance status or the system status of a node's instance has been impaired for two minutes. No event of AWS tells
of that. By default the node only gets a Warning Event, ` + "`InstanceImpaired`" + `. With ` + "`drain-impaired-instances`" + ` it is a notice:

| Situation | What happens | ` + "`why`" + ` | Deadline |
|---|---|---|---|
%s
The impairment is over if the node is ready, and EC2 has not listed the instance at two polls in a row. If several nodes are impaired,
and they are more than half of all, or more than five and more than a fifth of all, none is drained for that: a zone or the network may
have failed. If somebody uncordons the node, the drain is called off, and this impairment is not handled again.
`

// polled is the doc of what no message tells.
func polled(t *testing.T) string {
	t.Helper()
	var codes, rows strings.Builder
	for _, code := range []string{"instance-retirement", "instance-stop", "instance-reboot", "system-reboot", "system-maintenance"} {
		n := notice.Notice{Kind: notice.ScheduledChange, Effect: notice.EffectOfEvent(code), Time: now, Deadline: now.Add(docLead)}
		d := decision.Decide(n, decision.Facts{Ownership: decision.Ours, Now: now}, situation{}.of())
		fmt.Fprintf(&codes, "| `%s` | `%s` |\n", code, d.Why)
	}
	for _, s := range []struct {
		situation
		ended bool
	}{
		{ordinary[0], false},
		{ordinary[1], false},
		{situation{words: "it is not impaired any more", facts: decision.Facts{Ownership: decision.Ours, State: decision.Running}}, true},
		{situation{words: "it is not impaired any more, and EC2 says that it has stopped or terminated", facts: decision.Facts{Ownership: decision.Ours, State: decision.Gone}}, true},
		{ordinary[3], false},
	} {
		n := notice.Notice{Kind: notice.InstanceImpaired, Time: now.Add(-docAge), Ended: s.ended}
		s.facts.Now = now
		d := decision.Decide(n, s.facts, s.of())
		fmt.Fprintf(&rows, "| %s | %s | `%s` | %s |\n", s.words, actionWords(n, d), d.Why, strings.Replace(deadlineWords(t, n, d), "the event", "the poll", 1))
	}
	return fmt.Sprintf(polledDoc, &codes, &rows)
}
