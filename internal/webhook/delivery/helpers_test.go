package delivery

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/reporttest"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

const (
	// nthTemplate is the default of AWS Node Termination Handler, as it stands in
	// the values of its users.
	nthTemplate = `{"text":"[NTH][Instance Interruption] EventID: {{ .EventID }} - Kind: {{ .Kind }} - Instance: {{ .InstanceID }} - Node: {{ .NodeName }} - Description: {{ .Description }} - Start Time: {{ .StartTime }}"}`
)

func mustParse(t *testing.T, text string) webhook.Template {
	t.Helper()
	parsed, err := webhook.ParseTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func render(t *testing.T, text string, i webhook.Interruption) string {
	t.Helper()
	body, err := mustParse(t, text).Render(t.Context(), i, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// endOfDrain is the end of a drain of node-1.
func endOfDrain(o intent.Outcome, r evacuation.Result, took time.Duration, deadline time.Time) report.Drain {
	return report.Drain{
		Node: cluster.Ref{Name: "node-1", UID: "uid-1", Instance: reporttest.Instance}, Intent: intent.Intent{Entries: []intent.Entry{{Kind: notice.SpotInterruption, Deadline: deadline}}}, Outcome: o, Result: r, Took: took,
	}
}
