package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/smithy-go/logging"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// hostile are texts that end a line, steer a terminal, or are none.
var hostile = []string{
	"one\ntwo", "one\r\ntwo", "\x1b[2J\x1b]0;title\x07", "\u009b31m", "\u0085\u2028\u2029", "\u202ereversed", "\xff\xfe", "\x00", "\U000e0041", `","level":"error`, "\t",
}

func TestEveryEntryOfTheLogIsOnePrintableLine(t *testing.T) {
	begins := regexp.MustCompile(`^time=\d{4}-\d\d-\d\dT\S+ level=(INFO|ERROR) msg=`)
	for _, inJSON := range []bool{false, true} {
		var out bytes.Buffer
		log, end := NewLogger(&options.Options{JSONLogging: inJSON, LogLevel: slog.LevelDebug}, &out)
		entries := 0
		for _, text := range hostile {
			log.Info("a constant message", "value", text, "kind of "+text, errors.New(text))
			log.Error("a constant message", "error", errors.New(text), "body", []byte(text), "left", time.Minute)
			log.With("logger", text).Info(text)   // as a library may
			klog.Infof("of Kubernetes: %s", text) //nolint:forbidigo // as client-go does
			entries += 4
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
	var out bytes.Buffer
	log, end := NewLogger(&options.Options{LogLevel: slog.LevelInfo}, &out)
	defer end()
	aws := awsLogger(log)
	aws.Logf(logging.Warn, "failed to %s", "close")
	aws.Logf(logging.Debug, "a request")
	if line := out.String(); !strings.Contains(line, `level=WARN msg="message of the AWS SDK" logger=aws says="failed to close"`) || strings.Contains(line, "a request") {
		t.Errorf("logged %q", line)
	}
}
