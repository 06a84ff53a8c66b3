package kubesim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// scheduler is the model of the scheduler, and of the controllers that make pods: it binds one pod after another, at
// the rate of its tier. The mutex of the Server guards it, but for wake.
type scheduler struct {
	wake    chan struct{} // has a value when a pod was queued
	spare   []string      // names of the nodes with room
	queue   []*pod        // unbound, in the order of their names
	created int
	bound   int
	next    time.Time // when it can bind the next one that is not queued yet
}

// Replacements are the pods that were made in place of evicted ones.
type Replacements struct {
	Created, Bound int
	// LastBound is when the last one is bound, or will be.
	LastBound time.Time
}

// Replacements tells what the scheduler has done, and when it is done with what waits.
func (s *Server) Replacements() Replacements {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Replacements{Created: s.scheduler.created, Bound: s.scheduler.bound, LastBound: s.scheduler.next}
}

// replace makes a pod in place of one that stops, as the controller of a ReplicaSet does at once. The caller holds mu.
func (s *Server) replace(p *pod, now time.Time) {
	q := &s.scheduler
	if len(q.spare) == 0 {
		return
	}
	q.created++
	made := &pod{
		name: replacement(q.created), uid: s.newUID("pod"), created: now, phase: corev1.PodPending,
		stop: p.stop, workload: p.workload,
	}
	s.setPod(made)
	q.queue = append(q.queue, made)
	if q.next.Before(now) {
		q.next = now
	}
	q.next = q.next.Add(s.bindTime())
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// bindTime is how long the scheduler takes for one pod.
func (s *Server) bindTime() time.Duration {
	if s.options.Tier.PodsPerSecond == 0 {
		return 0
	}
	return time.Duration(float64(time.Second) / s.options.Tier.PodsPerSecond)
}

// schedule binds pods until Stop.
func (s *Server) schedule() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-s.scheduler.wake:
		case <-timer.C:
		}
		if wait, more := s.bindDue(time.Now()); more {
			timer.Reset(max(wait, time.Millisecond))
		}
	}
}

// bindDue binds the pods whose turn it is, and returns when the next one's is.
func (s *Server) bindDue(now time.Time) (wait time.Duration, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.scheduler
	for len(q.queue) > 0 {
		// The last one is bound at next, and each before it a bindTime earlier.
		due := q.next.Add(-time.Duration(len(q.queue)-1) * s.bindTime())
		if due.After(now) {
			return due.Sub(now), true
		}
		bound := *q.queue[0]
		q.queue = q.queue[1:]
		bound.node = q.spare[q.bound%len(q.spare)]
		q.bound++
		s.setPod(&bound)
		running := bound // its kubelet needs a second for it, which nobody waits for here
		running.phase = corev1.PodRunning
		s.setPod(&running)
	}
	return 0, false
}

// RemoveReplacements removes the pods that were made in place of evicted ones, and what waits for the scheduler.
func (s *Server) RemoveReplacements() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.scheduler.created {
		if p := s.pods[replacement(k+1)]; p != nil {
			s.removePod(p)
		}
	}
	s.scheduler.queue, s.scheduler.created, s.scheduler.bound, s.scheduler.next = nil, 0, 0, time.Time{}
}

// replacement is the name of the n-th one.
func replacement(n int) string { return fmt.Sprintf("replacement-%09d", n) }
