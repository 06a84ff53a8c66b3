package main

import (
	"io"
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newLogger logs to out, a printable line an entry, and so do the Kubernetes
// libraries. After end nothing is written: why the process exits is its last line,
// whatever the goroutines that it leaves behind have to say.
func newLogger(c *config, out io.Writer) (log logr.Logger, end func()) {
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(encoding)
	if !c.jsonLogging {
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}
	lines := &untilEnd{to: printable{out}}
	log = zapr.NewLogger(zap.New(zapcore.NewCore(encoder, zapcore.AddSync(lines), c.logLevel)))
	klog.SetLogger(log.WithName("kubernetes"))
	return log, lines.end
}

// untilEnd writes one call after the other until end, and drops what comes later.
type untilEnd struct {
	mu    sync.Mutex
	to    io.Writer
	ended bool
}

// Write implements io.Writer.
func (u *untilEnd) Write(entry []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return len(entry), nil
	}
	return u.to.Write(entry)
}

func (u *untilEnd) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
}
