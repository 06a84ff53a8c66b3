// Package webhook has what a message of the webhook says: an [Interruption] in one of its phases,
// put into the text of a user's template. Package delivery sends it.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/Masterminds/sprig/v3"
)

// DefaultTemplate says what the default of AWS Node Termination Handler says. It
// is JSON whatever the fields hold, because toJson quotes the whole text.
const DefaultTemplate = `{"text":{{ printf "[NTH][Instance Interruption] EventID: %s - Kind: %s - ` +
	`Instance: %s - Node: %s - Description: %s - Start Time: %s" ` +
	`.EventID .Kind .InstanceID .NodeName .Description .StartTime | toJson }}}`

// An Interruption is what a template is executed with. The names of its fields
// are those of AWS Node Termination Handler, for the sake of templates that are
// in use; what is not known is empty.
type Interruption struct {
	EventID              string
	Kind                 string // such as SPOT_ITN
	Monitor              string // SQSMonitor
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
	Rule     string        // the name of the rule that decided; empty at the end of a drain that another leader began
	Deadline time.Time     // by which the pods have to leave; zero: nothing is forced
	Evicted  int           // pods that have left by eviction; this and the next are of the drain's end
	Forced   int           // pods that were deleted, because the deadline was near or the instance stopping
	Missed   []string      // pods that were still there at the deadline, as namespace/name
	Took     time.Duration // from the drain's beginning to its end
	// Ended are pods that left without us, Lost those that were still there when the
	// instance was gone, Unconfirmed those that should have ended, and whose kubelet has
	// not confirmed it.
	Ended       int
	Lost        []string
	Unconfirmed []string

	pods func() []string
}

// SQSMonitor is the Monitor of all interruptions: AWS Node Termination Handler calls notices from a
// queue so.
const SQSMonitor = "SQS_MONITOR"

// A Phase is what a message is about.
type Phase string

// The phases of an interruption.
const (
	PhaseReceived Phase = "received" // a notice has come, and its node is being cordoned
	PhaseDrained  Phase = "drained"  // the pods have left
	PhaseMissed   Phase = "missed"   // pods were still there at the deadline
	PhaseGone     Phase = "gone"     // pods were still there when the instance was gone
	// PhaseUnconfirmed: pods should have ended, but no kubelet confirms it.
	PhaseUnconfirmed Phase = "unconfirmed"
)

// Phases are all of them, in their order.
var Phases = []Phase{PhaseReceived, PhaseDrained, PhaseMissed, PhaseGone, PhaseUnconfirmed}

// Pods are the names of the pods on the node. They are listed only for templates
// that ask for them, and then when the message is sent.
func (i Interruption) Pods() []string {
	if i.pods == nil {
		return nil
	}
	return i.pods()
}

// A Template makes the body of the webhook's request.
type Template struct{ parsed *template.Template }

// ParseTemplate parses a Go template with sprig's functions for text, without
// those that look at the environment of the process or its network, and tries it
// with an example of each phase. Errors are those of [text/template], with the line.
func ParseTemplate(text string) (Template, error) {
	functions := sprig.TxtFuncMap()
	for _, name := range []string{"env", "expandenv", "getHostByName"} {
		delete(functions, name)
	}
	parsed, err := template.New("webhook").Funcs(functions).Parse(text)
	if err != nil {
		return Template{}, err
	}
	for _, i := range Samples() {
		if err := parsed.Execute(io.Discard, i); err != nil {
			return Template{}, err
		}
	}
	return Template{parsed}, nil
}

func (t Template) execute(i Interruption) ([]byte, error) {
	var body bytes.Buffer
	if err := t.parsed.Execute(&body, i); err != nil {
		return nil, err
	}
	return body.Bytes(), nil
}

// Render executes the template. It calls list for the names of the pods on the node if the
// template asks for them; nil: there are none.
func (t Template) Render(
	ctx context.Context, i Interruption, list func(ctx context.Context, node string) []string,
) ([]byte, error) {
	if list != nil {
		i.pods = func() []string { return list(ctx, i.NodeName) }
	}
	return t.execute(i)
}

// CheckJSON returns nil if the template makes JSON of the example of each phase. The error names the
// phase, and the line and the column of the body, both from 1, with the text of that line.
func (t Template) CheckJSON() error {
	for _, i := range Samples() {
		body, err := t.execute(i)
		if err != nil {
			return err
		}
		var ignored any
		if err := json.Unmarshal(body, &ignored); err != nil {
			return fmt.Errorf("phase %s: %w", i.Phase, jsonError(string(body), err))
		}
	}
	return nil
}

// jsonError puts the position in front of an error of json.Unmarshal, and the line of body behind it.
func jsonError(body string, err error) error {
	const most = 200
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return err
	}
	at := min(max(int(syntax.Offset)-1, 0), len(body)) // Offset counts the byte that is wrong
	start := 1 + strings.LastIndexByte(body[:at], '\n')
	line, _, _ := strings.Cut(body[start:], "\n")
	if runes := []rune(line); len(runes) > most {
		line = string(runes[:most]) + "…"
	}
	return fmt.Errorf("line %d, column %d: %w: %s", 1+strings.Count(body[:at], "\n"),
		1+utf8.RuneCountInString(body[start:at]), err, line)
}
