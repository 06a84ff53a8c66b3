package policyfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// A mount is a folder as the kubelet makes it of a ConfigMap, with one key.
type mount struct {
	t    *testing.T
	root string
	n    int
}

func newMount(t *testing.T, content string) *mount {
	m := &mount{t: t, root: t.TempDir()}
	m.must(os.Symlink("..data/policy.yaml", m.path()))
	m.set(content)
	return m
}

func (m *mount) path() string { return filepath.Join(m.root, "policy.yaml") }

// set replaces the content by a rename of a link, as the kubelet does.
func (m *mount) set(content string) {
	m.n++
	folder := strings.Repeat("x", m.n)
	m.must(os.Mkdir(filepath.Join(m.root, folder), 0o700))
	m.must(os.WriteFile(filepath.Join(m.root, folder, "policy.yaml"), []byte(content), 0o600))
	m.must(os.Symlink(folder, filepath.Join(m.root, "..data_tmp")))
	m.must(os.Rename(filepath.Join(m.root, "..data_tmp"), filepath.Join(m.root, "..data")))
}

func (m *mount) remove() { m.must(os.Remove(filepath.Join(m.root, "..data"))) }

func (m *mount) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// A followed is a Follower at work in virtual time.
type followed struct {
	*Follower
	log   logtest.Log
	valid []bool
}

func follow(t *testing.T, m *mount) *followed {
	t.Helper()
	var f followed
	var err error
	if f.Follower, err = Follow(m.path(), f.log.Logger(), func(ok bool) { f.valid = append(f.valid, ok) }, fine); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go f.Run(ctx, Interval)
	return &f
}

// pass lets so much time pass, and returns what was logged in it.
func (f *followed) pass(d time.Duration) string {
	f.log.Reset()
	time.Sleep(d)
	synctest.Wait()
	var text strings.Builder
	for _, e := range f.log.Entries("") {
		fmt.Fprintln(&text, e.With("hash", "nodeRules", "podRules", "inForce", "error"))
	}
	return text.String()
}

func (f *followed) rule() string { return f.Rules().Nodes[0].Name }

const (
	policyA   = "version: 1\nnodes: [{name: a, do: drain}]\n"
	policyB   = "version: 1\nnodes: [{name: b, do: cordon}]\n"
	policyBad = "version: 1\nnodes: [{name: c, do: explode}]\n"
)

func TestAChangedFileIsInForceWithinTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t, policyA)
		f := follow(t, m)
		changed, before := f.Changed(), f.Rules()
		if log := f.pass(time.Minute); log != "" || f.rule() != "a" {
			t.Errorf("without a change: rule %s, log %s", f.rule(), log)
		}
		m.set(policyB)
		log := f.pass(5 * time.Second)
		if want := "info the policy file is in force hash=" + hashOf([]byte(policyB))[:12] + " nodeRules=1 podRules=0\n"; log != want {
			t.Errorf("log %q, want %q", log, want)
		}
		select {
		case <-changed:
		default:
			t.Error("nobody is told of the change")
		}
		select {
		case <-f.Changed():
			t.Error("there is a change to come already")
		default:
		}
		if f.rule() != "b" || before.Nodes[0].Name != "a" {
			t.Errorf("the rule is %s, and that of before is now %s", f.rule(), before.Nodes[0].Name)
		}
	})
}

func TestAWrongFileChangesNothingAndIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t, policyA)
		f := follow(t, m)
		changed := f.Changed()
		m.set(policyBad)
		want := `error the policy file is wrong: the rules of before stay in force error="line 2, column 23: nodes[0].do: \"explode\" is none ` +
			`of them; allowed: ignore, notify, cordon, drain" hash=` + hashOf([]byte(policyBad))[:12] + ` inForce=` + hashOf([]byte(policyA))[:12] + "\n"
		if log := f.pass(time.Minute); log != want {
			t.Errorf("log\n%s, want\n%s", log, want)
		}
		m.set("version: 2\n")
		if log := f.pass(time.Minute); strings.Count(log, "\n") != 1 || !strings.Contains(log, "is 2; allowed: 1") {
			t.Errorf("the log of another wrong content: %s", log)
		}
		m.set(policyA)
		if log := f.pass(time.Minute); strings.Count(log, "\n") != 1 || !strings.Contains(log, "is right again") {
			t.Errorf("the log of the right content: %s", log)
		}
		select {
		case <-changed:
			t.Error("a change was told, and there was none")
		default:
		}
		if diff := cmp.Diff([]bool{true, false, false, true}, f.valid); diff != "" || f.rule() != "a" {
			t.Errorf("rule %s, valid (-want +got):\n%s", f.rule(), diff)
		}
		m.set(policyBad)
		f.pass(Interval)
		m.set(policyB)
		log := f.pass(Interval)
		if !strings.Contains(log, "is in force") || !strings.Contains(log, "is right again") || f.rule() != "b" {
			t.Errorf("after another wrong content: rule %s, log %s", f.rule(), log)
		}
	})
}

func TestAFileThatIsMissingForAMomentIsNoMistake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t, policyA)
		f := follow(t, m)
		m.remove()
		if log := f.pass(missingTime / 2); log != "" || f.rule() != "a" {
			t.Errorf("rule %s, log %s", f.rule(), log)
		}
		m.set(policyB)
		f.pass(Interval)
		if diff := cmp.Diff([]bool{true, true}, f.valid); diff != "" || f.rule() != "b" {
			t.Errorf("rule %s, valid (-want +got):\n%s", f.rule(), diff)
		}
		m.remove()
		log := f.pass(10 * missingTime)
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, "cannot be read") || f.rule() != "b" || f.valid[2] {
			t.Errorf("rule %s, valid %v, log %s", f.rule(), f.valid, log)
		}
		m.set(policyB)
		if log := f.pass(Interval); !strings.Contains(log, "is right again") || !slices.Equal(f.valid, []bool{true, true, false, true}) {
			t.Errorf("valid %v, log %s", f.valid, log)
		}
	})
}

func TestTheStartNeedsARightFile(t *testing.T) {
	discard := logr.Discard()
	never := func(bool) { t.Error("a file is told to be right or wrong") }
	m := newMount(t, policyBad)
	if _, err := Follow(m.path(), discard, never, fine); !isProblems(err) {
		t.Errorf("a wrong file: %v", err)
	}
	if _, err := Follow(m.path()+"x", discard, never, fine); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	m.set(strings.Repeat("#", MaxSize+5))
	if _, err := Follow(m.path(), discard, never, fine); !isProblems(err) {
		t.Errorf("a large file: %v", err)
	}
}

func isProblems(err error) bool {
	_, ok := errors.AsType[Problems](err)
	return ok
}

func TestWithoutAFileThereAreNoRules(t *testing.T) {
	var f *Follower
	f.Run(t.Context(), time.Second)
	if rules := f.Rules(); len(rules.Nodes)+len(rules.Pods) > 0 || f.Changed() != nil {
		t.Errorf("rules %+v", rules)
	}
}

// The rules are read in the middle of decisions.
func TestRulesAreReadWhileTheyChange(t *testing.T) {
	m := newMount(t, policyA)
	f, err := Follow(m.path(), logr.Discard(), func(bool) {}, fine)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for k := range 20 {
			m.set([]string{policyB, policyA}[k%2])
			f.look()
		}
	}()
	for {
		select {
		case <-done:
			return
		case <-f.Changed():
		}
		if name := f.Rules().Nodes[0].Name; name != "a" && name != "b" {
			t.Errorf("the rule is %s", name)
		}
	}
}

// fine finds nothing wrong with rules.
func fine(*decision.Rules) error { return nil }

// What keeps a pod from starting with a file keeps the file from being in force in one that runs.
func TestRulesThatDoNotFitAreNotInForce(t *testing.T) {
	away := errors.New("rule b needs an option")
	fits := func(r *decision.Rules) error {
		if r.Nodes[0].Name == "b" {
			return away
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMount(t, policyA)
		var valid []bool
		f, err := Follow(m.path(), logr.Discard(), func(ok bool) { valid = append(valid, ok) }, fits)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go f.Run(ctx, Interval)
		m.set(policyB)
		time.Sleep(2 * Interval)
		synctest.Wait()
		if f.Rules().Nodes[0].Name != "a" || !strings.Contains(f.Problem(), away.Error()) || valid[len(valid)-1] {
			t.Errorf("rule %s is in force; %q", f.Rules().Nodes[0].Name, f.Problem())
		}
	})
	if _, err := Follow(newMount(t, policyB).path(), logr.Discard(), func(bool) {}, fits); !errors.Is(err, away) {
		t.Errorf("at the start: %v", err)
	}
}
