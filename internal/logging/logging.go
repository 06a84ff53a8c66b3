// Package logging is the edge between logr, which all packages log with, and zap, which writes. No other
// package imports zap or zapr.
//
// A message is a constant. Level 0 has one line for each decision and one for each fate, level 1 has the rest.
// Error is for what a person must act on, [Warn] for what may become that. Values are attached once, and a key
// means one thing everywhere:
//
//	node, instance, pod   what it is about: a Node's name, an EC2 instance id, a pod's namespace/name
//	kind, message, event  the notice: its kind, its SQS message id, the id that AWS gave it
//	why, detail           the reason, one of a closed list or a sentence; more words about it
//	says                  the words of another program
//	error                 an error that was met
//	rule                  the rule of the policy file that applies
//	what                  the call or the part that works or fails
//	which                 the first names of those that a line counts
//	deadline, left        when the machine goes away, and how long that is from now
//	in, after             how long until the next try, and since the first
package logging

import (
	"fmt"
	"io"
	stdlog "log"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/aws/smithy-go/logging"
	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// Options say how a log is written.
type Options struct {
	// Level is the lowest that is written: debug, which is level 1 of logr, info, which is level 0, warn or
	// error. Any other text is info.
	Level string
	JSON  bool // a JSON object an entry; otherwise columns with tabs between them
}

// New returns a logger that writes one printable line per entry to out, which is not called concurrently. After
// end nothing is written: the reason why the process exits is its last line, whatever goroutines it leaves behind.
func New(out io.Writer, o Options) (log logr.Logger, end func()) {
	lines := &closableWriter{to: escapingWriter{out}}
	level, err := zapcore.ParseLevel(o.Level)
	if err != nil {
		level = zapcore.InfoLevel
	}
	return zapr.NewLogger(zap.New(zapcore.NewCore(encoder(o.JSON), zapcore.AddSync(lines), level))), lines.close
}

func encoder(inJSON bool) zapcore.Encoder {
	format := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "logger", MessageKey: "msg",
		EncodeTime:     zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00"),
		EncodeDuration: zapcore.StringDurationEncoder,
	}
	if inJSON {
		format.EncodeLevel = zapcore.LowercaseLevelEncoder
		return zapcore.NewJSONEncoder(format)
	}
	format.EncodeLevel = zapcore.CapitalLevelEncoder
	return zapcore.NewConsoleEncoder(format)
}

// Warn logs a warning: something is wrong, and may heal or be tolerable. logr has no such level, because a reader
// either acts on a line or does not. But people filter their logs by it, and NTH has it, so the line goes to the
// zap logger below. A logger without one, as tests have, gets an entry of level 0 with the value warning.
func Warn(log logr.Logger, message string, keysAndValues ...any) {
	switch sink := log.GetSink().(type) {
	case nil:
	case zapr.Underlier:
		sink.GetUnderlying().Sugar().Warnw(message, keysAndValues...)
	case heals:
		Warn(log.WithSink(sink.LogSink), message, keysAndValues...)
	default:
		log.Info(message, append(slices.Clip(keysAndValues), "warning", true)...)
	}
}

// heals has say log the errors of Kubernetes' libraries, which go on after them: a watch that has failed is begun
// again. An error of ours is what a person has to act on.
type heals struct {
	logr.LogSink
	say func(log logr.Logger, message string, keysAndValues ...any)
}

// Error implements logr.LogSink.
func (h heals) Error(err error, message string, keysAndValues ...any) {
	if err != nil {
		keysAndValues = append(slices.Clip(keysAndValues), "error", err)
	}
	h.say(logr.Logger{}.WithSink(h.LogSink), message, keysAndValues...)
}

// WithValues implements logr.LogSink.
func (h heals) WithValues(keysAndValues ...any) logr.LogSink {
	return heals{h.LogSink.WithValues(keysAndValues...), h.say}
}

// WithName implements logr.LogSink.
func (h heals) WithName(name string) logr.LogSink { return heals{h.LogSink.WithName(name), h.say} }

// Quiet is log for a library whose failures its caller logs: all of its lines, also errors, are of level 1 at least.
func Quiet(log logr.Logger) logr.Logger {
	log = log.V(1)
	if sink := log.GetSink(); sink != nil {
		log = log.WithSink(heals{sink, func(log logr.Logger, message string, keysAndValues ...any) {
			log.V(1).Info(message, keysAndValues...)
		}})
	}
	return log
}

// Deadline is log with the value deadline, in UTC, where there is one.
func Deadline(log logr.Logger, at time.Time) logr.Logger {
	if at.IsZero() {
		return log
	}
	return log.WithValues("deadline", at.UTC().Format(time.RFC3339))
}

// Redirect has the Kubernetes libraries and the standard library's default logger log to log. To the zero value they
// log nothing.
func Redirect(log logr.Logger) {
	kubernetes := log.WithName("kubernetes")
	if sink := kubernetes.GetSink(); sink != nil {
		kubernetes = kubernetes.WithSink(heals{sink, Warn})
	}
	klog.SetLoggerWithOptions(kubernetes, klog.ContextualLogger(true))
	stdlog.SetFlags(0)
	stdlog.SetOutput(says{log.WithName("go")})
}

// Std returns a logger of the standard library's type whose lines become warnings of log.
func Std(log logr.Logger) *stdlog.Logger { return stdlog.New(says{log}, "", 0) }

// says makes an entry of each line that a library of others writes.
type says struct{ log logr.Logger }

// Write implements io.Writer.
func (s says) Write(line []byte) (int, error) {
	Warn(s.log, "message of a library", "says", strings.TrimSpace(string(line)))
	return len(line), nil
}

// AWS returns a logger for AWS's SDK. The SDK goes on after what it warns of, by retries.
func AWS(log logr.Logger) logging.Logger {
	log = log.WithName("aws")
	return logging.LoggerFunc(func(class logging.Classification, format string, values ...any) {
		text := fmt.Sprintf(format, values...)
		if class == logging.Warn {
			Warn(log, "message of a library", "says", text)
			return
		}
		log.V(1).Info("message of a library", "says", text)
	})
}

// closableWriter drops what is written after close. It may be used concurrently.
type closableWriter struct {
	mu     sync.Mutex
	to     io.Writer
	closed bool
}

// Write implements io.Writer.
func (w *closableWriter) Write(entry []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return len(entry), nil
	}
	return w.to.Write(entry)
}

func (w *closableWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// outageLogged is how often an outage is logged while it lasts.
const outageLogged = time.Minute

// An Outage logs calls that fail again and again: the first failure as a warning, then one error a minute, then the
// end. It is not safe for concurrent use.
type Outage struct {
	Fails, Works string // the messages
	What         string // the call that fails

	Failures int // in a row
	since    time.Time
	logged   time.Time
}

// Failed is called with the error of each call that fails.
func (o *Outage) Failed(log logr.Logger, err error) {
	now := time.Now()
	o.Failures++
	switch {
	case o.Failures == 1:
		Warn(log, o.Fails, "error", err, "what", o.What)
		o.since, o.logged = now, now
	case now.Sub(o.logged) >= outageLogged:
		log.Error(err, o.Fails, "what", o.What, "failures", o.Failures)
		o.logged = now
	}
}

// Ended is called after each call that succeeds.
func (o *Outage) Ended(log logr.Logger) {
	if o.Failures == 0 {
		return
	}
	log.Info(o.Works, "what", o.What, "failures", o.Failures, "after", time.Since(o.since).Round(time.Second).String())
	o.Failures = 0
}

// Recover turns a panic of do into an error, and logs it with its stack. Otherwise what somebody else has written
// could end the process again and again.
func Recover(log logr.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			log.Error(err, "recovered", "stack", string(debug.Stack()))
		}
	}()
	return do()
}

// Printable is a writer to which each call writes one entry, with its line's end: to writes it as a line of the log.
func Printable(to io.Writer) io.Writer { return escapingWriter{to} }

// escapingWriter writes each entry of a log as one line without control characters: any
// character that is not graphic is written as in JSON, \u001b, except the line's end. In the
// strings of JSON that changes nothing.
type escapingWriter struct{ to io.Writer }

// Write implements io.Writer. Each call is one entry, with its line's end.
func (w escapingWriter) Write(entry []byte) (int, error) {
	line := make([]byte, 0, len(entry))
	for rest := entry; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		lineEnd := r == '\n' && len(rest) == 1
		switch {
		case r == utf8.RuneError && size == 1:
			line = append(line, `\ufffd`...)
		case unicode.IsGraphic(r) || r == '\t' || lineEnd:
			line = append(line, rest[:size]...)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			line = fmt.Appendf(line, `\u%04x\u%04x`, first, second)
		default:
			line = fmt.Appendf(line, `\u%04x`, r)
		}
		rest = rest[size:]
	}
	if _, err := w.to.Write(line); err != nil {
		return 0, err
	}
	return len(entry), nil
}
