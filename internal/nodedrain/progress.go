package nodedrain

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// answerTime is how long an evacuation has to say how far it has come. It does so at once, but for the moments in which
// it has not begun or has ended.
const answerTime = 20 * time.Millisecond

// progress is how far a drain has come, for those who want to know. Its methods may be called concurrently.
type progress struct {
	questions  chan chan<- evacuation.Progress   // for the evacuation
	evacuating atomic.Bool                       // it answers them
	evacuated  atomic.Pointer[evacuation.Result] // nil: it has not ended

	saying sync.Mutex
	stage  overview.Stage  // how far the drain has come; empty: it has not begun
	waits  []overview.Wait // what it waits for beside its pods
}

// say notes how far the drain has come, and what it waits for beside its pods.
func (p *progress) say(stage overview.Stage, waits ...overview.Wait) {
	p.saying.Lock()
	defer p.saying.Unlock()
	p.stage, p.waits = stage, waits
}

// said returns what say has noted.
func (p *progress) said() (overview.Stage, []overview.Wait) {
	p.saying.Lock()
	defer p.saying.Unlock()
	return p.stage, p.waits
}

// waitsForRoom reports whether a limit holds the drain back.
func (p *progress) waitsForRoom() bool {
	_, waits := p.said()
	return slices.ContainsFunc(waits, func(w overview.Wait) bool {
		return w.Cause == overview.Limit || w.Cause == overview.MaxUnready
	})
}

// ask asks the evacuation how far it has come; known: it has answered.
func (p *progress) ask(ctx context.Context) (answer evacuation.Progress, known bool) {
	if !p.evacuating.Load() {
		return answer, false
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	reply := make(chan evacuation.Progress, 1)
	select {
	case p.questions <- reply:
	case <-ctx.Done():
		return answer, false
	}
	select {
	case answer = <-reply:
		return answer, true
	case <-ctx.Done():
		return answer, false
	}
}
