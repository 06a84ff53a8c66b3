package proxy

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// errReplaced ends the way of an answer that the client does not get.
var errReplaced = errors.New("the answer was replaced")

// half is a body that breaks off in its middle; where its length is not known,
// in the middle of what the first read brings.
type half struct {
	io.ReadCloser
	length int64 // -1: not known
	begun  bool
	left   int64
}

func (h *half) Read(p []byte) (int, error) {
	if !h.begun {
		h.begun, h.left = true, h.length/2
		if h.length < 0 {
			n, err := h.ReadCloser.Read(p)
			h.left = 0
			return n / 2, err
		}
	}
	if h.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := h.ReadCloser.Read(p[:min(int64(len(p)), h.left)])
	h.left -= int64(n)
	return n, err
}

// endAfter returns a body that ends, as if all had been said, after d.
func endAfter(body io.ReadCloser, d time.Duration) io.ReadCloser {
	e := &ending{ReadCloser: body}
	e.timer = time.AfterFunc(d, func() {
		e.over.Store(true)
		_ = body.Close() // ends a Read that waits
	})
	return e
}

type ending struct {
	io.ReadCloser
	timer *time.Timer
	over  atomic.Bool
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && e.over.Load() {
		err = io.EOF
	}
	return n, err
}

func (e *ending) Close() error {
	e.timer.Stop()
	return e.ReadCloser.Close()
}
