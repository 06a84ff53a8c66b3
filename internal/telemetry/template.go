package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/Masterminds/sprig/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// DefaultTemplate says what the default of AWS Node Termination Handler says. It
// is JSON whatever the fields hold, because toJson quotes the whole text.
const DefaultTemplate = `{"text":{{ printf "[NTH][Instance Interruption] EventID: %s - Kind: %s - Instance: %s - Node: %s - Description: %s - Start Time: %s" .EventID .Kind .InstanceID .NodeName .Description .StartTime | toJson }}}`

// An Interruption is what a template is executed with. The names of its fields
// are those of AWS Node Termination Handler, for the sake of templates that are
// in use; what is not known is empty.
type Interruption struct {
	EventID              string
	Kind                 string // see webhookKinds
	Monitor              string // SQS_MONITOR
	Description          string // a sentence; it can hold any character
	State                string // of the instance, for a STATE_CHANGE
	AutoScalingGroupName string
	NodeName             string
	NodeLabels           map[string]string
	InstanceID           string
	InstanceType         string
	ProviderID           string
	IsManaged            bool      // true: others are left alone
	StartTime            time.Time // of the event; of a scheduled change where it is ahead
	EndTime              time.Time // when the instance goes away; zero where nobody said so
	NodeProcessed        bool      // the drain has ended
	InProgress           bool      // it has not
	AccountId            string    //nolint:revive,staticcheck // templates in use have the name
	InstanceLifeCycle    string
	PublicHostname       string
	PublicIP             string
	LocalHostname        string
	LocalIP              string
	AvailabilityZone     string
	Region               string

	// What AWS Node Termination Handler does not have.
	Phase    Phase
	Deadline time.Time     // by which the pods have to leave; zero: nothing is forced
	Evicted  int           // pods that have left by eviction; this and the next are of the drain's end
	Forced   int           // pods that were deleted, because the deadline was near or the instance stopping
	Missed   []string      // pods that were still there at the deadline, as namespace/name
	Took     time.Duration // from the drain's beginning to its end

	pods func() []string
}

// A Phase is what a message is about.
type Phase string

// The phases of an interruption.
const (
	PhaseReceived Phase = "received" // a notice has come, and its node is being cordoned
	PhaseDrained  Phase = "drained"  // the pods have left
	PhaseMissed   Phase = "missed"   // pods were still there at the deadline
)

// Phases are all of them, in their order.
var Phases = []Phase{PhaseReceived, PhaseDrained, PhaseMissed}

// Pods are the names of the pods on the node. They are listed only for templates
// that ask for them, and then when the message is sent.
func (i Interruption) Pods() []string { return i.pods() }

var webhookKinds = map[notice.Kind]string{
	notice.SpotInterruption:        "SPOT_ITN",
	notice.RebalanceRecommendation: "REBALANCE_RECOMMENDATION",
	notice.StateChange:             "STATE_CHANGE",
	notice.ScheduledChange:         "SCHEDULED_EVENT",
	notice.ASGTerminate:            "ASG_LIFECYCLE",
	notice.ASGLaunch:               "ASG_LAUNCH_LIFECYCLE",
}

// interruptionOf puts a decision about a machine in a template's terms.
func interruptionOf(d Decision, m machine) Interruption {
	m = m.about(d)
	i := Interruption{
		EventID:              d.Notice.ID,
		Kind:                 webhookKinds[d.Notice.Kind],
		Monitor:              sqsMonitor,
		Description:          describe(d),
		AutoScalingGroupName: d.Notice.Hook.Group,
		NodeName:             d.Node.Name,
		NodeLabels:           m.labels,
		InstanceID:           m.instance,
		InstanceType:         m.instanceType,
		ProviderID:           m.providerID,
		IsManaged:            true,
		StartTime:            d.Notice.Time,
		EndTime:              d.Deadline,
		Deadline:             d.Deadline,
		Phase:                PhaseReceived,
		InProgress:           true,
		AccountId:            m.account,
		InstanceLifeCycle:    m.lifecycle,
		PublicHostname:       m.addresses[corev1.NodeExternalDNS],
		PublicIP:             m.addresses[corev1.NodeExternalIP],
		LocalHostname:        m.addresses[corev1.NodeInternalDNS],
		LocalIP:              m.addresses[corev1.NodeInternalIP],
		AvailabilityZone:     m.zone,
		Region:               m.region,
		pods:                 func() []string { return nil },
	}
	if d.Notice.Kind == notice.StateChange {
		i.State = d.Notice.Detail
	}
	if d.Notice.Kind == notice.ScheduledChange && !d.Notice.Deadline.IsZero() {
		i.StartTime, i.EndTime = d.Notice.Deadline, time.Time{}
	}
	return i
}

// ended is the same interruption when its node's drain has ended.
func (i Interruption) ended(r drain.Result, took time.Duration, deadline time.Time) Interruption {
	i.Phase = phaseOf(r)
	i.Description = howDrained(r, took, deadline)
	i.NodeProcessed, i.InProgress = true, false
	i.Deadline, i.Evicted, i.Forced, i.Missed, i.Took = deadline, r.Evicted, r.Forced, r.Missed, rounded(took)
	return i
}

// phaseOf is the phase that a drain with this result has ended in.
func phaseOf(r drain.Result) Phase {
	if len(r.Missed) > 0 {
		return PhaseMissed
	}
	return PhaseDrained
}

// samples are an interruption in each of its phases, to try a template with.
func samples() []Interruption {
	now := time.Date(2026, time.November, 20, 10, 15, 30, 0, time.UTC)
	i := interruptionOf(Decision{
		Notice: notice.Notice{
			Kind: notice.SpotInterruption, ID: "7d5a1d4c-7f2b-4f3e-9d1a-000000000001", Account: "123456789012", Region: "us-east-1",
			Time: now, Instances: []string{"i-0123456789abcdef0"}, Detail: "terminate",
		},
		Instance: "i-0123456789abcdef0",
		Node:     cluster.Ref{Name: "ip-10-0-0-1.ec2.internal", Instance: "i-0123456789abcdef0"},
		Deadline: now.Add(2 * time.Minute),
	}, machine{
		providerID: "aws:///us-east-1a/i-0123456789abcdef0", instanceType: "m7g.large", zone: "us-east-1a",
		labels: map[string]string{"topology.kubernetes.io/zone": "us-east-1a"},
	})
	i.pods = func() []string { return []string{"web-0"} }
	left := drain.Result{Evicted: 9, Forced: 1}
	missed := drain.Result{Evicted: 9, Missed: []string{"default/web-0"}}
	return []Interruption{i, i.ended(left, time.Minute, i.Deadline), i.ended(missed, 2*time.Minute, i.Deadline)}
}

// A Template makes the body of the webhook's request.
type Template struct{ parsed *template.Template }

// ParseTemplate parses a Go template with sprig's functions for text, without
// those that look at the environment of the process or its network, and tries it
// with an example of each phase. Errors begin with the line and the column, both from 1.
func ParseTemplate(text string) (Template, error) {
	functions := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "getHostByName"} {
		delete(functions, name)
	}
	parse := func(text string) (*template.Template, error) {
		return template.New(templateName).Funcs(functions).Parse(text)
	}
	parsed, err := parse(text)
	if err != nil {
		return Template{}, parseError(text, err, func(text string) error {
			_, err := parse(text)
			return err
		})
	}
	for _, i := range samples() {
		if err := parsed.Execute(io.Discard, i); err != nil {
			return Template{}, executionError(err)
		}
	}
	return Template{parsed}, nil
}

// render executes the template. list names the pods on the node.
func (t Template) render(ctx context.Context, i Interruption, list func(context.Context, string) []string) ([]byte, error) {
	i.pods = func() []string {
		if list == nil {
			return nil
		}
		return list(ctx, i.NodeName)
	}
	var body bytes.Buffer
	if err := t.parsed.Execute(&body, i); err != nil {
		return nil, executionError(err)
	}
	return body.Bytes(), nil
}

const templateName = "webhook"

var (
	parseMessage     = regexp.MustCompile(`(?s)^template: ` + templateName + `:(\d+): (.*)$`)
	executionMessage = regexp.MustCompile(`(?s)^template: ` + templateName + `:(\d+):(\d+): (?:executing "[^"]*" )?(.*)$`)
)

// executionError puts the position in front of an error of Execute, whose columns
// count bytes from 0.
func executionError(err error) error {
	found := executionMessage.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}
	column, convErr := strconv.Atoi(found[2])
	if convErr != nil {
		return err
	}
	return fmt.Errorf("line %s, column %d: %s", found[1], column+1, found[3])
}

// parseError puts the position in front of an error of Parse, which tells the
// line alone. The parser reads from left to right and stops at the first mistake:
// from there on, any longer beginning of the text fails with the same words.
func parseError(text string, err error, parse func(string) error) error {
	line, words := splitParseError(err)
	fails := func(end int) bool {
		err := parse(text[:end])
		if err == nil {
			return false
		}
		_, w := splitParseError(err)
		return w == words
	}
	end := len(text)
	if stop := lineEnd(text, line); fails(stop) {
		end = stop
	}
	for end > 1 && fails(end-1) {
		end--
	}
	before := text[:end-1]
	column := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return fmt.Errorf("line %d, column %d: %s", 1+strings.Count(before, "\n"), column, words)
}

// splitParseError splits what Parse says into the line, from 1, and the words.
func splitParseError(err error) (line int, words string) {
	found := parseMessage.FindStringSubmatch(err.Error())
	if found == nil {
		return 0, err.Error()
	}
	line, _ = strconv.Atoi(found[1]) // 0 will do: see lineEnd
	return line, found[2]
}

// lineEnd is where the line ends, counted from 1; the end of the text for a line it does not have.
func lineEnd(text string, line int) int {
	end := 0
	for ; line > 0; line-- {
		next := strings.IndexByte(text[end:], '\n')
		if next < 0 {
			return len(text)
		}
		end += next + 1
	}
	return max(end, min(1, len(text)))
}
