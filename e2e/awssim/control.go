package awssim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// controlPrefix is where the control API lives. No path of AWS starts so:
// queues have an account number there, and all else is at /.
const controlPrefix = "/_awssim/"

// State is the setup of an account. Applying it to an account adds and replaces things; it removes
// nothing.
type State struct {
	Queues        []Queue        `json:"queues,omitempty"`
	Instances     []Instance     `json:"instances,omitempty"`
	Groups        []Group        `json:"groups,omitempty"`
	Hooks         []Hook         `json:"hooks,omitempty"`
	TargetGroups  []TargetGroup  `json:"targetGroups,omitempty"`
	Keys          []Key          `json:"keys,omitempty"`
	Rules         []Rule         `json:"rules,omitempty"`
	Topics        []Topic        `json:"topics,omitempty"`
	Subscriptions []Subscription `json:"subscriptions,omitempty"`
	Faults        []Fault        `json:"faults,omitempty"`
}

// Apply sets up everything that it can, and returns all errors.
func (s *Server) Apply(state State) error {
	var failures []error
	note := func(err error) { failures = append(failures, err) }
	for _, queue := range state.Queues {
		note(s.CreateQueue(queue))
	}
	for _, instance := range state.Instances {
		note(s.PutInstance(instance))
	}
	for _, group := range state.Groups {
		note(s.PutGroup(group))
	}
	for _, hook := range state.Hooks {
		note(s.PutHook(hook))
	}
	for _, group := range state.TargetGroups {
		note(s.PutTargetGroup(group))
	}
	for _, key := range state.Keys {
		note(s.PutKey(key))
	}
	for _, rule := range state.Rules {
		note(s.PutRule(rule))
	}
	for _, topic := range state.Topics {
		note(s.PutTopic(topic))
	}
	for _, subscription := range state.Subscriptions {
		s.PutSubscription(subscription)
	}
	for _, fault := range state.Faults {
		note(s.SetFault(fault))
	}
	return errors.Join(failures...)
}

// State returns what Apply would need to set up the same account again. Messages, lifecycle
// actions and records are not part of it.
func (s *Server) State() State {
	return State{
		Queues: s.Queues(), Instances: s.Instances(), Groups: s.Groups(), Hooks: s.Hooks(), TargetGroups: s.TargetGroups(),
		Keys: s.Keys(), Rules: s.Rules(), Topics: s.Topics(), Subscriptions: s.Subscriptions(), Faults: s.Faults(),
	}
}

// controlHandler is the control API; the command's manual has examples.
func (s *Server) controlHandler() http.Handler {
	mux := http.NewServeMux()
	show := func(path string, read func(r *http.Request) any) {
		mux.HandleFunc("GET "+controlPrefix+path,
			func(w http.ResponseWriter, r *http.Request) { writeJSON(w, http.StatusOK, read(r)) })
	}
	change := func(method, path string, apply func(r *http.Request) (any, error)) {
		mux.HandleFunc(method+" "+controlPrefix+path, func(w http.ResponseWriter, r *http.Request) {
			output, err := apply(r)
			if err != nil {
				writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
				return
			}
			writeJSON(w, http.StatusOK, output)
		})
	}
	remove := func(path string, remove func(r *http.Request) bool) {
		mux.HandleFunc("DELETE "+controlPrefix+path, func(w http.ResponseWriter, r *http.Request) {
			if !remove(r) {
				writeJSON(w, http.StatusNotFound, map[string]string{"error": "not found"})
				return
			}
			w.WriteHeader(http.StatusNoContent)
		})
	}

	show("state", func(*http.Request) any { return s.State() })
	change("PUT", "state", s.putState)
	show("queues", func(*http.Request) any { return s.Queues() })
	change("PUT", "queues/{queue}", s.putQueue)
	change("PUT", "queues/{queue}/policy", s.putQueuePolicy)
	remove("queues/{queue}", func(r *http.Request) bool { return s.RemoveQueue(r.PathValue("queue")) })
	show("queues/{queue}/messages", func(r *http.Request) any { return s.Messages(r.PathValue("queue")) })
	change("POST", "queues/{queue}/messages", s.postMessage)
	change("POST", "queues/{queue}/messages/{id}/redeliver", s.postRedelivery)
	show("instances", func(*http.Request) any { return s.Instances() })
	change("PUT", "instances/{id}", s.putInstance)
	change("PUT", "instances/{id}/state/{state}", s.putInstanceState)
	remove("instances/{id}", func(r *http.Request) bool { return s.RemoveInstance(r.PathValue("id")) })
	show("groups", func(*http.Request) any { return s.Groups() })
	change("PUT", "groups/{group}", s.putGroup)
	show("hooks", func(*http.Request) any { return s.Hooks() })
	change("PUT", "groups/{group}/hooks/{hook}", s.putHook)
	show("target-groups", func(*http.Request) any { return s.TargetGroups() })
	change("PUT", "target-groups/{group}", s.putTargetGroup)
	remove("target-groups/{group}", func(r *http.Request) bool { return s.RemoveTargetGroup(r.PathValue("group")) })
	show("target-groups/{group}/targets", func(r *http.Request) any { return s.Targets(r.PathValue("group")) })
	change("PUT", "target-groups/{group}/targets/{id}", func(r *http.Request) (any, error) {
		return struct{}{}, s.RegisterTarget(r.PathValue("group"), r.PathValue("id"), 0)
	})
	remove("target-groups/{group}/targets/{id}", func(r *http.Request) bool {
		return s.DeregisterTarget(r.PathValue("group"), r.PathValue("id")) == nil
	})
	show("keys", func(*http.Request) any { return s.Keys() })
	change("PUT", "keys/{key}", s.putKey)
	change("PUT", "keys/{key}/policy", s.putKeyPolicy)
	show("rules", func(*http.Request) any { return s.Rules() })
	change("PUT", "rules/{rule}", s.putRule)
	remove("rules/{rule}", func(r *http.Request) bool { return s.RemoveRule(r.PathValue("rule")) })
	change("POST", "topics", s.postTopic)
	change("POST", "subscriptions", s.postSubscription)
	remove("subscriptions/{topic}/{queue}", func(r *http.Request) bool {
		return s.RemoveSubscription(r.PathValue("topic"), r.PathValue("queue"))
	})
	show("lifecycle", func(*http.Request) any { return s.LifecycleActions() })
	change("POST", "lifecycle", s.postLifecycle)
	show("faults", func(*http.Request) any { return s.Faults() })
	change("PUT", "faults/{id}", s.putFault)
	remove("faults/{id}", func(r *http.Request) bool { return s.RemoveFault(r.PathValue("id")) })
	show("calls", func(*http.Request) any { return s.Calls() })
	show("counts", func(*http.Request) any { return s.countList() })
	show("effects", func(*http.Request) any { return s.Effects() })
	return mux
}

func (s *Server) putState(r *http.Request) (any, error) {
	var state State
	if err := readJSON(r, &state); err != nil {
		return nil, err
	}
	if err := s.Apply(state); err != nil {
		return nil, err
	}
	return s.State(), nil
}

func (s *Server) putQueue(r *http.Request) (any, error) {
	queue := Queue{}
	if err := readJSON(r, &queue); err != nil {
		return nil, err
	}
	queue.Name = r.PathValue("queue")
	if err := s.CreateQueue(queue); err != nil {
		return nil, err
	}
	return map[string]string{"url": s.QueueURL(queue.Name), "arn": s.QueueARN(queue.Name)}, nil
}

// putQueuePolicy and putKeyPolicy take the document as it is: in a field of JSON all of
// its quotes would have to be escaped.
func (s *Server) putQueuePolicy(r *http.Request) (any, error) {
	document, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return struct{}{}, s.SetQueuePolicy(r.PathValue("queue"), string(document))
}

func (s *Server) putKeyPolicy(r *http.Request) (any, error) {
	document, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return struct{}{}, s.SetKeyPolicy(r.PathValue("key"), string(document))
}

func (s *Server) postMessage(r *http.Request) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	id, err := s.SendMessage(r.PathValue("queue"), string(body))
	if err != nil {
		return nil, err
	}
	return map[string]string{"id": id}, nil
}

func (s *Server) postRedelivery(r *http.Request) (any, error) {
	return struct{}{}, s.Redeliver(r.PathValue("queue"), r.PathValue("id"))
}

func (s *Server) putInstance(r *http.Request) (any, error) {
	instance := Instance{}
	if err := readJSON(r, &instance); err != nil {
		return nil, err
	}
	instance.ID = r.PathValue("id")
	return struct{}{}, s.PutInstance(instance)
}

func (s *Server) putInstanceState(r *http.Request) (any, error) {
	return struct{}{}, s.SetInstanceState(r.PathValue("id"), r.PathValue("state"))
}

func (s *Server) putGroup(r *http.Request) (any, error) {
	group := Group{}
	if err := readJSON(r, &group); err != nil {
		return nil, err
	}
	group.Name = r.PathValue("group")
	return struct{}{}, s.PutGroup(group)
}

func (s *Server) putTargetGroup(r *http.Request) (any, error) {
	group := TargetGroup{}
	if err := readJSON(r, &group); err != nil {
		return nil, err
	}
	group.Name = r.PathValue("group")
	return map[string]string{"arn": s.TargetGroupARN(group.Name)}, s.PutTargetGroup(group)
}

func (s *Server) putHook(r *http.Request) (any, error) {
	hook := Hook{}
	if err := readJSON(r, &hook); err != nil {
		return nil, err
	}
	hook.Group, hook.Name = r.PathValue("group"), r.PathValue("hook")
	return struct{}{}, s.PutHook(hook)
}

func (s *Server) putKey(r *http.Request) (any, error) {
	key := Key{}
	if err := readJSON(r, &key); err != nil {
		return nil, err
	}
	key.ID = r.PathValue("key")
	return struct{}{}, s.PutKey(key)
}

func (s *Server) putRule(r *http.Request) (any, error) {
	rule := Rule{}
	if err := readJSON(r, &rule); err != nil {
		return nil, err
	}
	rule.Name = r.PathValue("rule")
	return struct{}{}, s.PutRule(rule)
}

func (s *Server) postSubscription(r *http.Request) (any, error) {
	subscription := Subscription{}
	if err := readJSON(r, &subscription); err != nil {
		return nil, err
	}
	s.PutSubscription(subscription)
	return struct{}{}, nil
}

func (s *Server) postTopic(r *http.Request) (any, error) {
	topic := Topic{}
	if err := readJSON(r, &topic); err != nil {
		return nil, err
	}
	return struct{}{}, s.PutTopic(topic)
}

func (s *Server) postLifecycle(r *http.Request) (any, error) {
	var start struct {
		InstanceID string     `json:"instanceID"`
		Transition Transition `json:"transition"`
	}
	if err := readJSON(r, &start); err != nil {
		return nil, err
	}
	setDefault(&start.Transition, Terminating)
	actions, err := s.StartTransition(start.InstanceID, start.Transition)
	return append([]LifecycleAction{}, actions...), err
}

func (s *Server) putFault(r *http.Request) (any, error) {
	fault := Fault{}
	if err := readJSON(r, &fault); err != nil {
		return nil, err
	}
	fault.ID = r.PathValue("id")
	return struct{}{}, s.SetFault(fault)
}

// countList returns the counts as a list: keys of JSON objects can only be strings.
func (s *Server) countList() []countedCalls {
	list := []countedCalls{}
	for key, count := range s.Counts() {
		list = append(list, countedCalls{key, count})
	}
	return list
}

type countedCalls struct {
	CallKey
	Count int `json:"count"`
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // fails when the client left
}

// readJSON reads a body; an empty one leaves the value as it is. A field that
// does not exist is an error, or a typing mistake would go unnoticed.
func readJSON(r *http.Request, into any) error {
	err := strictJSON(r.Body, into)
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("read body: %w", err)
}

func strictJSON(body io.Reader, into any) error {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// duration is written as "1m30s" in JSON.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	*d = duration(value)
	return err
}

type plainHook Hook

type jsonHook struct {
	*plainHook
	HeartbeatTimeout duration `json:"heartbeatTimeout,omitempty"`
}

// MarshalJSON writes the heartbeat timeout as text, such as "30s".
func (h Hook) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonHook{(*plainHook)(&h), duration(h.HeartbeatTimeout)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (h *Hook) UnmarshalJSON(text []byte) error {
	form := jsonHook{plainHook: (*plainHook)(h)}
	if err := strictJSON(bytes.NewReader(text), &form); err != nil {
		return err
	}
	h.HeartbeatTimeout = time.Duration(form.HeartbeatTimeout)
	return nil
}

type plainFault Fault

type jsonFault struct {
	*plainFault
	Latency duration `json:"latency,omitempty"`
	HangFor duration `json:"hangFor,omitempty"`
	Skew    duration `json:"skew,omitempty"`
}

// MarshalJSON writes times as text, such as "250ms".
func (f Fault) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonFault{(*plainFault)(&f), duration(f.Latency), duration(f.HangFor), duration(f.Skew)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Fault) UnmarshalJSON(text []byte) error {
	form := jsonFault{plainFault: (*plainFault)(f)}
	if err := strictJSON(bytes.NewReader(text), &form); err != nil {
		return err
	}
	f.Latency, f.HangFor, f.Skew = time.Duration(form.Latency), time.Duration(form.HangFor), time.Duration(form.Skew)
	return nil
}
