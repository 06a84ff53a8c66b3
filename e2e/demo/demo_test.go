package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// asDemo is the variable that makes the test binary the demo.
const asDemo = "TEST_BINARY_IS_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "demo-build-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(buildDir)
	m.Run()
}

// The demo runs in the root of the source tree.
const root = "../.."

// child is a demo that runs, in a process group and with a directory for
// temporary files of its own.
type child struct {
	*exec.Cmd
	t       *testing.T
	tempDir string
	out     bytes.Buffer // standard output
	errOut  bytes.Buffer
}

func command(t *testing.T, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tempDir, err := os.MkdirTemp("", "demo-") // shorter than t.TempDir: sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tempDir) })
	p := &child{Cmd: exec.CommandContext(t.Context(), self, args...), t: t, tempDir: tempDir}
	p.Dir = root
	p.Env = append(os.Environ(), asDemo+"=1", "TMPDIR="+tempDir)
	p.Stdout, p.Stderr = &p.out, &p.errOut
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return p
}

// end waits for the end of a demo that was started and returns its status. It
// checks that nothing is left of it.
func (p *child) end() int {
	p.t.Helper()
	if err := p.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		p.t.Fatal(err)
	}
	left, err := os.ReadDir(p.tempDir)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, file := range left {
		p.t.Errorf("%s was left behind", file.Name())
	}
	if err := syscall.Kill(-p.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		p.t.Errorf("processes were left behind: %v", err)
	}
	return p.ProcessState.ExitCode()
}

func (p *child) run() int {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	return p.end()
}

var buildDir string

// buildHandler builds the controller, once for all tests.
var buildHandler = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(buildDir, "node-termination-handler")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "./cmd/node-termination-handler")
	build.Dir = root
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the controller: %w\n%s", err, text)
	}
	return path, nil
})

func handler(t *testing.T) string {
	t.Helper()
	path, err := buildHandler()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheDemoTellsTheWholeStory(t *testing.T) {
	tier.Full(t, "make demo plays it in the gate")
	p := command(t, "-handler", handler(t))
	if status := p.run(); status != 0 {
		t.Fatalf("status %d\n%s%s", status, &p.out, &p.errOut)
	}
	t.Logf("\n%s", &p.out)
	rest := p.out.String()
	for _, pattern := range []string{
		`(?m)^controller +2 replicas .* replica-[12] leads$`,
		`(?m)^EC2 Spot Instance Interruption Warning: node-a goes away in 120 s$`,
		`(?m)^ +0\.0 s +1\d\d\.\d s  notice sent      i-\w+ +on node-a$`,
		`(?m)^ +\d+\.\d s +1\d\d\.\d s  node cordoned    node-a$`,
		`(?m)^ .* s  pod evicted      web-\S+ +from node-a$`,
		`(?m)^ .* s  pod running      web-\S+ +on node-[bcd]$`,
		`(?m)^ .* s  pod evicted      web-\S+ +from node-a$`,
		`(?m)^ .* s  pod running      web-\S+ +on node-[bcd]$`,
		`(?m)^ .* s  node empty       node-a +\d pods gone$`,
		`(?m)^ .* s  message deleted  [0-9a-f-]{36}$`,
		`(?m)^EC2 Instance-terminate Lifecycle Action: node-b goes away in 300 s$`,
		`(?m)^ +0\.0 s +300\.0 s  notice sent      i-\w+ +on node-b$`,
		`(?m)^ .* s  node cordoned    node-b$`,
		`(?m)^ .* s  pod evicted      web-\S+ +from node-b$`,
		`(?m)^ .* s  pod running      web-\S+ +on node-[cd]$`,
		`(?m)^ .* s  node empty       node-b +\d pods gone$`,
		`(?m)^ .* s  hook completed   drain-before-terminate +CONTINUE$`,
		`(?m)^ .* s  message deleted  [0-9a-f-]{36}$`,
		`(?m)^EC2 Spot Instance Interruption Warning: node-d goes away in 120 s$`,
		`(?m)^ .* s  node cordoned    node-d$`,
		`(?m)^ .* s  pod evicted      web-\S+ +from node-d$`,
		`(?m)^ .* s  leader killed    replica-[12] +by SIGKILL$`,
		`(?m)^ .* s  leader elected   replica-[12] +goes on with the drain$`,
		`(?m)^ +(?:39|[4-9]\d)\.\d s +\d+\.\d s  pod deleted      db-\S+ +from node-d$`, // its grace period just fits
		`(?m)^ .* s  pod running      db-\S+ +on node-c$`,
		`(?m)^ .* s  message deleted  [0-9a-f-]{36}$`,
		`(?m)^3 notices, 3 nodes drained, \d+ pods moved, 0 missed; left: \d+ of 120 s, \d+ of 300 s, \d+ of 120 s$`,
	} {
		found := regexp.MustCompile(pattern).FindStringIndex(rest)
		if found == nil {
			t.Fatalf("no line %s in\n%s", pattern, rest)
		}
		rest = rest[found[1]:]
	}
	const terminal = 100 // columns that the demo's names fit into
	for line := range strings.Lines(p.out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > terminal {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if strings.Contains(p.out.String(), "\x1b") {
		t.Error("colours where there is no terminal")
	}
}

func TestTheDemoFailsWhenNodesAreNotCordoned(t *testing.T) {
	tier.Full(t, "a control plane of its own")
	path := filepath.Join(t.TempDir(), "dry-run")
	// It sends the notice as it should.
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" simulate \"*) exec %[1]q \"$@\" ;; esac\nexec %[1]q --dry-run \"$@\"\n", handler(t))
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := command(t, "-handler", path, "-patience", "10s")
	if status := p.run(); status != 1 {
		t.Errorf("status %d, want 1\n%s", status, &p.out)
	}
	for _, want := range []string{
		"demo: it did not work: this did not happen within 10 s:\n  node-a is not cordoned\n  pod web-",
		"--- the end of the log of replica-1\n",
		"--- the end of the log of replica-2\n",
	} {
		if !strings.Contains(p.errOut.String(), want) {
			t.Errorf("%q is not in\n%s", want, &p.errOut)
		}
	}
}

func TestTheDemoFailsWhenTheControllerDoesNotRun(t *testing.T) {
	tier.Full(t, "a control plane of its own")
	p := command(t, "-handler", "false")
	if status := p.run(); status != 1 {
		t.Errorf("status %d, want 1\n%s", status, &p.out)
	}
	want := regexp.MustCompile(`wait until a replica leads: replica-[12] has ended: exit status 1\n`)
	if !want.Match(p.errOut.Bytes()) {
		t.Errorf("%s is not in\n%s", want, &p.errOut)
	}
}

func TestAnInterruptedDemoLeavesNothingBehind(t *testing.T) {
	tier.Full(t, "a control plane of its own")
	p := command(t, "-handler", handler(t))
	read, write := io.Pipe()
	p.Stdout = write
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	// In the middle of a drain, everything runs.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = write.Close() })
	if _, err := readUntil(read, regexp.MustCompile("pod evicted")); err != nil {
		t.Errorf("wait for an eviction: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := p.end(); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	if want := "demo: interrupted; nothing is left running\n"; p.errOut.String() != want {
		t.Errorf("it said %q, want %q", &p.errOut, want)
	}
}

func TestThePlaygroundStaysUntilItIsInterrupted(t *testing.T) {
	tier.Full(t, "a control plane of its own")
	variables := filepath.Join(t.TempDir(), "playground.env")
	p := command(t, "-handler", handler(t), "-playground", variables)
	read, write := io.Pipe()
	p.Stdout = write
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = write.Close() })
	text, err := readUntil(read, leads)
	killed := leads.FindStringSubmatch(text)
	if err != nil {
		_ = p.Process.Signal(os.Interrupt)
		t.Fatalf("wait for the playground: %v\n%s", err, &p.errOut)
	}
	storm := stormLine.FindString(text)
	if !strings.Contains(text, `alias kubectl="$(go -C hack/helm tool -n kubectl)"`) {
		t.Errorf("it does not tell how to compile kubectl:\n%s", text)
	}
	if pid, err := strconv.Atoi(killed[2]); err != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Fatalf("%v: %v", killed, err)
	}
	if text, err = readUntil(read, leads); err != nil {
		_ = p.Process.Signal(os.Interrupt)
		t.Fatalf("wait for the next leader: %v\n%s", err, &p.errOut)
	}
	if next := leads.FindStringSubmatch(text); next[2] == killed[2] || !strings.Contains(text, killed[1]+" has ended: signal: killed: it starts again") {
		t.Errorf("%v leads after %v:\n%s", next, killed, text)
	}
	go func() { _, _ = io.Copy(io.Discard, read) }()

	// What it tells people to type; one more drain, because the handler's own pods move too.
	for _, tt := range []struct {
		command string
		status  int
		want    string
	}{
		{"node-termination-handler doctor --accept permissions", 0, " checks passed, 1 accepted\n"},
		{"node-termination-handler what-if --all", 0, "0 of 3 nodes would lose pods"},
		{"node-termination-handler simulate spot --node node-a --yes", 0, " s  drained, 0 of "},
		{"node-termination-handler simulate spot --node node-b --yes", 0, " s  drained, 0 of "},
		{"node-termination-handler status", 0, "Queue:       "},
		{"node-termination-handler report", 4, "2 drains: 2 drained."}, // of this day, of which the leader knows some minutes
		{"node-termination-handler pause --why enough", 0, "the handler is paused"},
		{"kubectl-nth status", 5, "enough"},
		{"node-termination-handler resume", 0, "enough"},
	} {
		shell := exec.CommandContext(ctx, "sh", "-c", ". "+variables+" && "+tt.command)
		out, err := shell.CombinedOutput()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		if status := shell.ProcessState.ExitCode(); status != tt.status || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: status %d, want %d and %q in\n%s", tt.command, status, tt.status, tt.want, out)
		}
	}
	shell := exec.CommandContext(ctx, "sh", "-c", ". "+variables+"\n"+strings.Replace(storm, "--yes >/dev/null &", "--dry-run;", 1))
	out, err := shell.CombinedOutput()
	if notices := strings.Count(string(out), `"EC2 Spot Instance Interruption Warning"`); err != nil || notices != 3 {
		t.Errorf("%d notices in a storm of three nodes, %v:\n%s\n%s", notices, err, storm, out)
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if status := p.end(); status != 0 {
		t.Errorf("status %d, want 0\n%s", status, &p.errOut)
	}
	if _, err := os.Stat(variables); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file with the variables: %v", err)
	}
}

// leads is what the playground says of the leader: the pod and the process.
var leads = regexp.MustCompile(`(\S+) leads, as process (\d+)\. Its page is http://127\.0\.0\.1:\d+\n`)

// stormLine is the command that sends a notice for each node.
var stormLine = regexp.MustCompile(`for node in .* done`)

// readUntil reads what matches, and returns all that it has read.
func readUntil(r io.Reader, what *regexp.Regexp) (string, error) {
	var got bytes.Buffer
	for buffer := make([]byte, 4096); !what.Match(got.Bytes()); {
		n, err := r.Read(buffer)
		got.Write(buffer[:n])
		if err != nil {
			return got.String(), fmt.Errorf("%w after\n%s", err, &got)
		}
	}
	return got.String(), nil
}

func TestMistakesInTheArgumentsAreStatus2(t *testing.T) {
	for _, args := range [][]string{{}, {"-nope"}, {"-handler", "x", "extra"}} {
		p := command(t, args...)
		if status := p.run(); status != 2 || !strings.Contains(p.errOut.String(), "-handler") {
			t.Errorf("demo %q has status %d and says %q", args, status, &p.errOut)
		}
	}
}
