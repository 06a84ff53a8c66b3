package app

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

func TestThePolicyFileIsReadAtTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	follow := func(text string) (rules int, metric string, err error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m := telemetry.New()
		f, err := followPolicy(&options.Options{PolicyFile: file}, logr.Discard(), m)
		if err != nil {
			return 0, "", err
		}
		scrape := httptest.NewRecorder()
		m.Handler().ServeHTTP(scrape, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		for line := range strings.Lines(scrape.Body.String()) {
			if strings.HasPrefix(line, "node_termination_handler_policy_valid") {
				metric = strings.TrimSpace(line)
			}
		}
		return len(f.Rules().Nodes), metric, nil
	}
	rules, metric, err := follow("version: 1\nnodes: [{name: a, do: drain}, {name: b, do: cordon}]")
	if rules != 2 || metric != "node_termination_handler_policy_valid 1" || err != nil {
		t.Errorf("%d rules, %q, %v", rules, metric, err)
	}
	_, _, err = follow("version: 1\nrules: []\nnodes: [{name: a}]")
	want := options.Problems{
		{Name: "policy-file", Text: file + ", line 2, column 1: rules: there is no such key; allowed: version, windows, nodes, pods, tests"},
		{Name: "policy-file", Text: file + ", line 3, column 9: nodes[0].do: is missing: what is done with the node: ignore does nothing, notify tells " +
			"of the notice, cordon keeps new pods away, drain also makes its pods leave"},
	}
	if got, _ := errors.AsType[options.Problems](err); cmp.Diff(want, got) != "" {
		t.Errorf("problems (-want +got):\n%s", cmp.Diff(want, got))
	}
}

func TestARuleThatLeavesNodesToKarpenterNeedsTheOption(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nnodes: [{name: a, do: drain, by: karpenter}, {name: b, do: drain, by: handler}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := followPolicy(&options.Options{PolicyFile: file}, logr.Discard(), telemetry.New())
	want := options.Problems{{Name: "policy-file", Text: file + ", rule a says by: karpenter, which needs the option drain-by-karpenter"}}
	if got, _ := errors.AsType[options.Problems](err); cmp.Diff(want, got) != "" {
		t.Errorf("problems (-want +got):\n%s", cmp.Diff(want, got))
	}
	f, err := followPolicy(&options.Options{PolicyFile: file, DrainByKarpenter: true}, logr.Discard(), telemetry.New())
	if err != nil || len(f.Rules().Nodes) != 2 {
		t.Errorf("with the option: %+v, %v", f.Rules(), err)
	}
	if _, err := followPolicy(&options.Options{PolicyFile: file, IMDS: true}, logr.Discard(), telemetry.New()); err != nil {
		t.Errorf("on a node, where the option has no effect: %v", err)
	}
}

// The deadline of a hook, and whose it is, are the same with a queue and without.
func TestDecisionsKnowTheOptionsOfHooksWithoutAQueue(t *testing.T) {
	p := Policy(&options.Options{
		Queue: options.QueueURL{Text: "none"}, SweepInterval: time.Minute, HookNames: []string{"drain"},
		HeartbeatInterval: time.Minute, HeartbeatUntil: time.Hour,
	})
	if p.HeartbeatUntil != time.Hour || !p.Owns(notice.Hook{Name: "drain"}) || p.Owns(notice.Hook{Name: "another"}) {
		t.Errorf("%+v", p)
	}
}

func TestWithoutAPolicyFileThereAreNoRules(t *testing.T) {
	f, err := followPolicy(&options.Options{}, logr.Discard(), telemetry.New())
	if err != nil || len(f.Rules().Nodes)+len(f.Rules().Pods) > 0 {
		t.Errorf("rules %+v, error %v", f.Rules(), err)
	}
}
