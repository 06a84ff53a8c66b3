package drain

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	// leastSurgeTime is the least time before the last moment of a pod in which a rollout is begun. A new
	// pod is hardly ready sooner, and a rollout that comes too late is of no use to anybody.
	leastSurgeTime = 10 * time.Second
	// cordonRecheck is how soon a node is looked at again that seems not to be cordoned: our view of it is
	// mostly some milliseconds behind.
	cordonRecheck = time.Second
)

// Reasons not to ask the workload of a pod for a replacement.
var (
	errTooLate   = errors.New("there is no time for one")
	errSurgeOff  = errors.New("the option surge-singletons is off")
	errNotAsked  = errors.New("its annotation " + decision.LeaveAnnotation + ": surged is missing")
	errComesBack = errors.New("it tolerates the cordon, so that its replacement could come to this node")
)

// A surge is what is known of the replacement of a pod that comes first. The zero value: nobody was asked.
type surge struct {
	tried  bool   // Drainer.Surge was called, or it is known to be of no use
	begun  bool   // the pod's workload rolls out a replacement
	why    string // why it does not
	cancel func() // ends the call in flight; nil: none is
}

// asked reports whether a pod is on its way out, or was asked to be.
func (p podState) asked() bool {
	return p.stopping() || !p.acceptedAt.IsZero() || !p.evictingSince.IsZero() || !p.deletingSince.IsZero()
}

// surges reports whether the workload of a pod is to be asked for a replacement: somebody wants that, and
// nobody has asked.
func (p podState) surges(terms evacuation.Terms) bool {
	return p.tier == last && p.turn.Leave == decision.LeaveSurged && !p.surge.tried && !p.requested && !p.asked() &&
		modeOf(terms) != immediate && !terms.Reserve
}

// surgeBy returns until when a rollout is of use; zero: at any time.
func (p podState) surgeBy(terms evacuation.Terms) time.Time {
	latest := p.lastMoment(terms)
	if latest.IsZero() {
		return latest
	}
	return latest.Add(-leastSurgeTime)
}

// startSurge has the workload of a pod roll out a replacement, if it is time for that. It returns when to
// look again; zero: when something changes.
func (r *run) startSurge(calls context.Context, pod *corev1.Pod, p *podState, now time.Time) time.Time {
	switch {
	case !p.surges(r.request.Terms):
		return time.Time{}
	case r.drainer.Surge == nil:
		r.noteSurge(p, errSurgeOff)
		return time.Time{}
	case !p.turn.Surges:
		r.noteSurge(p, errNotAsked)
		return time.Time{}
	}
	by := p.surgeBy(r.request.Terms)
	switch {
	case !by.IsZero() && !now.Before(by):
		r.noteSurge(p, errTooLate)
		return time.Time{}
	case toleratesCordon(pod):
		r.noteSurge(p, errComesBack)
		return time.Time{}
	case !r.pods.nodeState().Cordoned: // the replacement could come to this node
		return now.Add(cordonRecheck)
	}
	ctx, cancel := context.WithCancel(calls)
	if !by.IsZero() {
		cancel()
		ctx, cancel = context.WithDeadline(calls, by)
	}
	p.surge.tried, p.surge.cancel = true, cancel
	r.inFlight++
	go func() {
		defer cancel()
		err := logging.Recover(r.request.Log, func() error { return r.drainer.Surge(ctx, pod) })
		r.post(func() {
			r.inFlight--
			p.surge.cancel = nil
			if err == nil || !p.asked() && calls.Err() == nil {
				r.noteSurge(p, err)
			}
		})
	}()
	return time.Time{}
}

// noteSurge notes that a pod's workload rolls out a replacement, or why not.
func (r *run) noteSurge(p *podState, err error) {
	log := r.request.Log.WithValues("pod", p.name)
	p.surge.tried, p.surge.begun = true, err == nil
	if err == nil {
		log.Info("a rollout brings the replacement of a pod first")
		return
	}
	p.surge.why = truncate(err.Error())
	const message = "no rollout brings the replacement of a pod first: it leaves last"
	if apierrors.IsForbidden(err) { // the ClusterRole has to change
		logging.Warn(log, message, "why", p.surge.why)
		return
	}
	log.Info(message, "why", p.surge.why)
}

// stop ends the call that would begin a rollout: the pod is asked to leave without one, or is gone.
func (s *surge) stop() {
	if s.cancel != nil {
		s.cancel()
	}
}

// noteRollout notes that a pod waits for its replacement.
func (p *podState) noteRollout(now time.Time) {
	if p.surge.begun && p.tier == last && !p.asked() {
		p.blocks.set(block{cause: overview.Surge, why: "its Deployment is rolling out a replacement"}, now)
		return
	}
	p.blocks.drop(overview.Surge)
}

// surged returns the names of the pods that have ended after their workload began to roll out a
// replacement, sorted.
func (n *nodePods) surged() (names []string) {
	for _, p := range n.departed {
		if p.surge.begun && !p.requested {
			names = append(names, p.name)
		}
	}
	slices.Sort(names)
	return names
}
