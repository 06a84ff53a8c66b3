package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	stdlog "log"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/smithy-go/logging"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// hostile are texts that end a line, steer a terminal, or are none.
var hostile = []string{
	"one\ntwo", "one\r\ntwo", "\x1b[2J\x1b]0;title\x07", "\u009b31m", "\u0085\u2028\u2029", "\u202ereversed", "\xff\xfe", "\x00", "\U000e0041", `","level":"error`, "\t",
}

func TestEveryEntryOfTheLogIsOnePrintableLine(t *testing.T) {
	begins := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)\t(DEBUG|INFO|WARN|ERROR)\t`)
	for _, inJSON := range []bool{false, true} {
		var out bytes.Buffer
		log, end := New(&out, Options{JSON: inJSON, Level: "debug"})
		Redirect(log)
		entries := 0
		for _, text := range hostile {
			log.Info("a constant message", "value", text, "kind of "+text, errors.New(text)) //nolint:loggercheck // as a library may
			log.Error(errors.New(text), "a constant message", "names", []string{text}, "left", time.Minute)
			log.Error(nil, "a constant message", "why", named(text))
			log.V(1).Info("a constant message", "body", []byte(text))
			Warn(log, "a constant message", "value", text)
			log.WithName(text).WithValues(text, text).Info(text) //nolint:loggercheck // as a library may
			Std(log).Printf("of an HTTP server: %s", text)
			stdlog.Printf("of who knows whom: %s", text) //nolint:forbidigo // as a library may
			klog.Infof("of Kubernetes: %s", text)        //nolint:forbidigo // as client-go does
			AWS(log).Logf(logging.Warn, "of AWS: %s", text)
			entries += 10
		}
		end()
		log.Info("of a goroutine left behind")
		klog.Info("of a watch left behind") //nolint:forbidigo // as client-go does
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != entries {
			t.Errorf("JSON %t: %d lines for %d entries", inJSON, len(lines), entries)
		}
		for _, line := range lines {
			if strings.ContainsAny(line, "\r\x1b\x00\u0085\u009b\u2028\u2029\u202e\U000e0041\ufffd") {
				t.Errorf("JSON %t: not printable: %q", inJSON, line)
			}
			var entry map[string]any
			if err := json.Unmarshal([]byte(line), &entry); inJSON && (err != nil || entry["level"] == "" || entry["time"] == nil) {
				t.Errorf("not an entry: %s: %v", line, err)
			} else if !inJSON && !begins.MatchString(line) {
				t.Errorf("not an entry: %s", line)
			}
		}
	}
}

// named is a string of a type of its own, as reasons are.
type named string

// The layout is what users see, and what they parse.
func TestAnEntryAsItIsWritten(t *testing.T) {
	at := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)`)
	for inJSON, want := range map[bool]string{
		false: "TIME\tINFO\tasg\tdecided\t{\"node\": \"node-1\", \"why\": \"spot\", \"left\": \"1m30s\"}\n" +
			"TIME\tWARN\tasg\ttrying again\t{\"node\": \"node-1\", \"error\": \"away\"}\n" +
			"TIME\tERROR\tasg\tmissed\t{\"node\": \"node-1\", \"pods\": [\"a\", \"b\"]}\n" +
			"TIME\tERROR\tasg\texit\t{\"node\": \"node-1\", \"error\": \"away\"}\n",
		true: `{"level":"info","time":"TIME","logger":"asg","msg":"decided","node":"node-1","why":"spot","left":"1m30s"}` + "\n" +
			`{"level":"warn","time":"TIME","logger":"asg","msg":"trying again","node":"node-1","error":"away"}` + "\n" +
			`{"level":"error","time":"TIME","logger":"asg","msg":"missed","node":"node-1","pods":["a","b"]}` + "\n" +
			`{"level":"error","time":"TIME","logger":"asg","msg":"exit","node":"node-1","error":"away"}` + "\n",
	} {
		var out bytes.Buffer
		log, end := New(&out, Options{JSON: inJSON})
		defer end()
		log = log.WithName("asg").WithValues("node", "node-1")
		log.Info("decided", "why", named("spot"), "left", 90*time.Second)
		log.V(1).Info("not at this level")
		Warn(log, "trying again", "error", errors.New("away"))
		log.Error(nil, "missed", "pods", []string{"a", "b"})
		log.Error(errors.New("away"), "exit")
		if diff := cmp.Diff(want, at.ReplaceAllString(out.String(), "TIME")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestTheLevelSaysWhatIsWritten(t *testing.T) {
	for level, want := range map[string]int{"debug": 4, "info": 3, "": 3, "warn": 2, "error": 1} {
		var out bytes.Buffer
		log, end := New(&out, Options{Level: level})
		defer end()
		log.V(1).Info("debug")
		log.Info("info")
		Warn(log, "warn")
		log.Error(nil, "error")
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("level %q: %d lines, want %d:\n%s", level, got, want, &out)
		}
	}
}

// The zero value of a logger is what a struct has whose field nobody has set.
func TestALoggerThatNobodyHasSetIsSilent(t *testing.T) {
	var log logr.Logger
	Warn(log.WithName("name").WithValues("node", "node-1"), "a warning")
	AWS(log).Logf(logging.Warn, "a warning")
	Std(log).Print("a warning")
}

func TestALineOfTheLogIsWrittenAsItIs(t *testing.T) {
	for entry, want := range map[string]string{
		"plain\ttext ☃ 日本\n": "plain\ttext ☃ 日本\n",
		"a\nb\n":             `a\u000ab` + "\n",
		"no end":             "no end",
		"\x1b[0m \u00a0\n":   `\u001b[0m ` + "\u00a0\n",
		"\xe6\x97\U000e0041": `\ufffd\ufffd\udb40\udc41`,
	} {
		var out bytes.Buffer
		if n, err := (escapingWriter{&out}).Write([]byte(entry)); n != len(entry) || err != nil || out.String() != want {
			t.Errorf("%q is written as %q, %d, %v; want %q", entry, out.String(), n, err, want)
		}
	}
}

func TestTheSDKOfAWSWritesIntoTheLog(t *testing.T) {
	var log logtest.Log
	aws := AWS(log.Logger())
	aws.Logf(logging.Warn, "failed to %s", "close")
	aws.Logf(logging.Debug, "a request")
	if warnings := log.Entries("", "level", "warn", "says", "failed to close"); len(warnings) != 1 || warnings[0].Logger != "aws" ||
		!log.Has("", "level", "debug", "says", "a request") {
		t.Errorf("logged\n%s", &log)
	}
}

// What the Kubernetes libraries call an error is tried again by them, as a watch that has ended.
func TestAnErrorOfAKubernetesLibraryIsAWarning(t *testing.T) {
	var out bytes.Buffer
	log, end := New(&out, Options{JSON: true, Level: "info"})
	Redirect(log)
	klog.ErrorS(errors.New("away"), "Failed to watch", "type", "Node") //nolint:forbidigo // as client-go does
	klog.LoggerWithValues(klog.LoggerWithName(klog.Background(), "reflector"), "type", "Pod").Error(nil, "Failed to list")
	Warn(klog.FromContext(t.Context()).WithValues("node", "a"), "a warning of ours, where the library's logger is at hand")
	end()
	var got []map[string]any
	for line := range strings.Lines(out.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		delete(entry, "time")
		got = append(got, entry)
	}
	want := []map[string]any{
		{"level": "warn", "logger": "kubernetes", "msg": "Failed to watch", "type": "Node", "error": "away"},
		{"level": "warn", "logger": "kubernetes.reflector", "msg": "Failed to list", "type": "Pod"},
		{"level": "warn", "logger": "kubernetes", "msg": "a warning of ours, where the library's logger is at hand", "node": "a"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}
