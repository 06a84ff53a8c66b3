package awssim

import (
	"maps"
	"slices"
	"time"
)

// Call is the record of one AWS call.
type Call struct {
	Start time.Time `json:"start"`
	// End is when the call was answered, or found to be abandoned.
	End time.Time `json:"end"`
	// Service is sqs, ec2, autoscaling, elasticloadbalancing, events, kms or sts.
	Service string `json:"service"`
	Action  string `json:"action"`
	// Params are the parameters that matter, by what they name: queue, message
	// (ids, also where the call had receipt handles), instance, filter, group,
	// hook, token, result, timeout, rule, key.
	Params map[string][]string `json:"params,omitempty"`
	// Entries counts the entries of a batch, and the messages or instances returned.
	Entries int `json:"entries,omitempty"`
	Status  int `json:"status"`
	// Code is that of the error, empty for none. ClientGone stands for a caller
	// that left; Reset, Hang and Half for answers lost to a fault.
	Code        string `json:"code,omitempty"`
	AccessKeyID string `json:"accessKeyID,omitempty"`
	// Region is the one the caller signed for.
	Region string `json:"region,omitempty"`
}

// CallKey is the key by which calls are counted. Calls that the simulator does not know are
// counted together, as unknown.
type CallKey struct {
	Service string `json:"service"`
	Action  string `json:"action"`
	Code    string `json:"code,omitempty"`
}

// EffectKind is the kind of an Effect.
type EffectKind string

// The kinds of Effect. EC2 states appear as instance effects, with the state
// in Result.
const (
	MessageSent         EffectKind = "MessageSent"
	MessageReceived     EffectKind = "MessageReceived"
	MessageDeleted      EffectKind = "MessageDeleted"
	MessageExpired      EffectKind = "MessageExpired"
	MessageDeadLettered EffectKind = "MessageDeadLettered"
	MessageRedelivered  EffectKind = "MessageRedelivered"
	ActionStarted       EffectKind = "ActionStarted"
	ActionHeartbeat     EffectKind = "ActionHeartbeat"
	ActionCompleted     EffectKind = "ActionCompleted"
	ActionTimedOut      EffectKind = "ActionTimedOut"
	InstanceState       EffectKind = "InstanceState"
)

// Effect is one change of the simulated world.
type Effect struct {
	Time time.Time  `json:"time"`
	Kind EffectKind `json:"kind"`

	Queue        string `json:"queue,omitempty"`
	MessageID    string `json:"messageID,omitempty"`
	ReceiveCount int    `json:"receiveCount,omitempty"`

	InstanceID string `json:"instanceID,omitempty"`
	Group      string `json:"group,omitempty"`
	Hook       string `json:"hook,omitempty"`
	Token      string `json:"token,omitempty"`
	// Result is CONTINUE or ABANDON of a lifecycle action, or the state of an instance.
	Result string `json:"result,omitempty"`
}

// Calls returns the last calls, Options.CallsKept at most, in the order of
// their ends. A long poll is recorded when it ends.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls.all()
}

// Counts returns how many calls there were since the start, none forgotten.
func (s *Server) Counts() map[CallKey]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// Effects returns the last effects, Options.EffectsKept at most, oldest first.
func (s *Server) Effects() []Effect {
	var effects []Effect
	s.locked(func(now time.Time) {
		for _, q := range s.queues {
			s.settleQueue(q, now)
		}
		effects = s.effects.all()
	})
	// An expiry is found late, but dated when it was due.
	slices.SortStableFunc(effects, func(a, b Effect) int { return a.Time.Compare(b.Time) })
	return effects
}

func (s *Server) recordCall(req *request, answer response, start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.add(Call{
		Start: start, End: time.Now(),
		Service: req.service, Action: req.action,
		Params: req.params, Entries: req.entries,
		Status: answer.status, Code: answer.code,
		AccessKeyID: req.accessKeyID, Region: req.region,
	})
	key := CallKey{Service: req.service, Action: req.action, Code: answer.code}
	// Names come from clients: a client that invents them must not make the map grow.
	if _, known := operations[req.service][req.action]; !known {
		key.Service, key.Action = "unknown", "unknown"
	}
	s.counts[key]++
}

// ring keeps the last size values.
type ring[T any] struct {
	size   int
	values []T
	oldest int
}

func (r *ring[T]) add(value T) {
	if len(r.values) < r.size {
		r.values = append(r.values, value)
		return
	}
	r.values[r.oldest] = value
	r.oldest = (r.oldest + 1) % r.size
}

// all returns a copy, oldest first.
func (r *ring[T]) all() []T {
	return append(append([]T{}, r.values[r.oldest:]...), r.values[:r.oldest]...)
}
