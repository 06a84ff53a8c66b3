package app

import (
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/aws/smithy-go/logging"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// NewLogger returns a logger that writes one printable line per entry to out, as the options
// say; the Kubernetes libraries log there too. After end nothing is written: why the process
// exits is its last line, whatever goroutines it leaves behind.
func NewLogger(o *options.Options, out io.Writer) (log *slog.Logger, end func()) {
	lines := &closableWriter{to: out}
	log = slog.New(NewLogHandler(o, lines))
	klog.SetSlogLogger(log.With("logger", "kubernetes"))
	return log, lines.close
}

// NewLogHandler writes entries to out as the options say.
func NewLogHandler(o *options.Options, out io.Writer) slog.Handler {
	handler := &slog.HandlerOptions{Level: o.LogLevel, ReplaceAttr: readable}
	if o.JSONLogging {
		return slog.NewJSONHandler(escapingWriter{out}, handler)
	}
	return slog.NewTextHandler(escapingWriter{out}, handler)
}

// readable writes durations as 1m30s in JSON too, which has nanoseconds otherwise, and the
// many levels of klog below info as debug.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case a.Key == slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok && level < slog.LevelInfo {
			a.Value = slog.AnyValue(slog.LevelDebug)
		}
	}
	return a
}

// awsLogger writes the messages of AWS's SDK to the log. The SDK goes on after what it warns
// of, by retries.
func awsLogger(log *slog.Logger) logging.Logger {
	log = log.With("logger", "aws")
	return logging.LoggerFunc(func(class logging.Classification, format string, values ...any) {
		says := fmt.Sprintf(format, values...)
		if class == logging.Warn {
			log.Warn("message of the AWS SDK", "says", says)
			return
		}
		log.Debug("message of the AWS SDK", "says", says)
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
