package awssim

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

var eventsOperations = map[string]operation{
	"DescribeRule":          describeRule,
	"ListRuleNamesByTarget": listRuleNamesByTarget,
	"ListTargetsByRule":     listTargetsByRule,
	"PutEvents":             putEvents,
}

const eventBridge = "events.amazonaws.com"

// RuleARN returns the ARN that a rule of this name has, or would have.
func (s *Server) RuleARN(name string) string { return s.arn("events", "rule/"+name) }

// mayDeliver reports whether a rule may send a body to a queue.
func (s *Server) mayDeliver(rule Rule, queue, body string) bool {
	if q, ok := s.queues[queue]; !ok || queue == rule.Queue && !q.takesFrom(rule) {
		return false
	}
	return s.mayEnter(queue, body, s.sends(rule))
}

// sends is what a rule asks of a policy: EventBridge does it for the rule, or the rule's role does.
func (s *Server) sends(rule Rule) func(action, resource string) iampolicy.Request {
	return func(action, resource string) iampolicy.Request {
		r := iampolicy.Request{Action: action, Resource: resource, Context: map[string]string{"aws:securetransport": "true"}}
		if rule.RoleARN != "" {
			r.Principal = rule.RoleARN
			r.Context["aws:principalarn"] = rule.RoleARN
			r.Context["aws:principalaccount"] = iampolicy.AccountOf(rule.RoleARN)
			return r
		}
		r.Service = eventBridge
		r.Context["aws:sourcearn"], r.Context["aws:sourceaccount"] = s.RuleARN(rule.Name), s.opts.Account
		return r
	}
}

// lets reports whether a policy of a resource lets a request through. To a role of the account its
// own policy is enough, but for keys, whose policy has to leave that to the account.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
func (s *Server) lets(document string, request iampolicy.Request) bool {
	p, err := iampolicy.Parse(document)
	if err != nil {
		return false
	}
	verdict := p.Evaluate(request)
	if request.Principal == "" || verdict == iampolicy.Allowed || verdict == iampolicy.Denied {
		return verdict == iampolicy.Allowed
	}
	role := s.roles[request.Principal[strings.LastIndexByte(request.Principal, '/')+1:]]
	if s.RoleARN(role.Name) != request.Principal ||
		strings.HasPrefix(request.Action, "kms:") && verdict != iampolicy.Unclear {
		return false
	}
	request.Principal = ""
	return allows(role.Policy, request)
}

// mayEnter reports whether somebody may send a body to a queue: it has to fit, the queue's policy
// has to allow it and, if the queue is encrypted with a key of KMS, the key's policy too.
func (s *Server) mayEnter(
	queue, body string, somebody func(action, resource string) iampolicy.Request,
) bool {
	q, ok := s.queues[queue]
	switch {
	case !ok, len(body) > q.maxSize:
		return false
	case !s.opts.EnforcePolicies:
		return true
	}
	if !s.lets(q.attributes["Policy"], somebody("sqs:SendMessage", q.arn)) {
		return false
	}
	id := q.attributes["KmsMasterKeyId"]
	if id == "" {
		return true
	}
	key, ok := s.key(id)
	if !ok || key.Manager == ManagerAWS || key.State != "Enabled" {
		return false
	}
	// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
	for _, action := range []string{"kms:GenerateDataKey", "kms:Decrypt"} {
		if !s.lets(key.Policy, somebody(action, s.keyARN(key))) {
			return false
		}
	}
	return true
}

func allows(document string, request iampolicy.Request) bool {
	p, err := iampolicy.Parse(document)
	return err == nil && p.Evaluate(request) == iampolicy.Allowed
}

type describeRuleOutput struct {
	Name         string
	ARN          string `json:"Arn"`
	EventPattern string
	State        string
	EventBusName string
}

// onRule runs f with the rule that a call names.
func (s *Server) onRule(req *request, name string, f func(Rule)) *apiError {
	req.show("rule", name)
	s.mu.Lock()
	defer s.mu.Unlock()
	rule, ok := s.rules[name]
	if !ok || rule.Bus {
		return badRequest("ResourceNotFoundException", "Rule %s does not exist on EventBus default.", name)
	}
	f(rule)
	return nil
}

func describeRule(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct{ Name string }
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	var output describeRuleOutput
	problem := s.onRule(req, input.Name, func(rule Rule) {
		output = describeRuleOutput{
			Name: rule.Name, ARN: s.RuleARN(rule.Name), EventPattern: s.shownPattern(rule),
			State: "ENABLED", EventBusName: "default",
		}
		if rule.Disabled {
			output.State = "DISABLED"
		}
	})
	return output, problem
}

// shownPattern is the pattern of a rule as it is shown; a rule without a pattern gets an
// equivalent one.
func (s *Server) shownPattern(rule Rule) string {
	switch {
	case rule.Pattern != "":
		return rule.Pattern
	case rule.DetailType != "":
		return marshal(map[string]any{"detail-type": []any{map[string]string{"wildcard": rule.DetailType}}})
	}
	return marshal(map[string]any{"account": []string{s.opts.Account}})
}

func listRuleNamesByTarget(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		TargetARN string `json:"TargetArn"`
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	names := []string{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.rules)) {
		rule := s.rules[name]
		if !rule.Bus && (s.arn("sqs", rule.Queue) == input.TargetARN || rule.Topic != "" && rule.Topic == input.TargetARN) {
			names = append(names, name)
		}
	}
	req.entries = len(names)
	return map[string]any{"RuleNames": names}, nil
}

type eventTarget struct {
	ID               string            `json:"Id"`
	ARN              string            `json:"Arn"`
	RoleARN          string            `json:"RoleArn,omitempty"`
	DeadLetterConfig map[string]string `json:",omitempty"`
	SQSParameters    map[string]string `json:"SqsParameters,omitempty"`
}

func listTargetsByRule(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct{ Rule string }
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	var targets []eventTarget
	problem := s.onRule(req, input.Rule, func(rule Rule) {
		target := eventTarget{ID: "queue", ARN: s.arn("sqs", rule.Queue), RoleARN: rule.RoleARN}
		if rule.DeadLetters != "" {
			target.DeadLetterConfig = map[string]string{"Arn": s.arn("sqs", rule.DeadLetters)}
		}
		if rule.MessageGroup != "" {
			target.SQSParameters = map[string]string{"MessageGroupId": rule.MessageGroup}
		}
		if rule.Queue != "" || rule.Topic == "" {
			targets = append(targets, target)
		}
		if rule.Topic != "" {
			target.ID, target.ARN = "topic", rule.Topic
			targets = append(targets, target)
		}
	})
	return map[string]any{"Targets": targets}, problem
}

type putEventsEntry struct {
	Source       string
	DetailType   string
	Detail       string
	Resources    []string
	EventBusName string
	Time         float64 // seconds since 1970, as the JSON protocol has times
}

type putEventsResult struct {
	EventID      string `json:"EventId,omitempty"`
	ErrorCode    string `json:",omitempty"`
	ErrorMessage string `json:",omitempty"`
}

func putEvents(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct{ Entries []putEventsEntry }
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	if len(input.Entries) < 1 || len(input.Entries) > maxBatch {
		return nil, &apiError{
			status: http.StatusBadRequest, code: "ValidationException",
			message: "Member must have length between 1 and 10.",
		}
	}
	req.entries = len(input.Entries)
	failed := 0
	var results []putEventsResult
	s.locked(func(now time.Time) {
		for _, entry := range input.Entries {
			result := s.putEvent(entry, now)
			if result.ErrorCode != "" {
				failed++
			}
			results = append(results, result)
		}
	})
	return map[string]any{"FailedEntryCount": failed, "Entries": results}, nil
}

func (s *Server) putEvent(entry putEventsEntry, now time.Time) putEventsResult {
	detail := json.RawMessage(entry.Detail)
	switch {
	case entry.Source == "" || entry.DetailType == "":
		return putEventsResult{
			ErrorCode:    "InvalidArgument",
			ErrorMessage: "Parameter Source or DetailType is not valid. Reason: it is required.",
		}
	case strings.HasPrefix(entry.Source, "aws."):
		return putEventsResult{ErrorCode: "NotAuthorizedForSourceException", ErrorMessage: "Not authorized for the source."}
	case json.Unmarshal(detail, new(map[string]any)) != nil:
		return putEventsResult{ErrorCode: "MalformedDetail", ErrorMessage: "Detail is malformed."}
	}
	e := event{
		DetailType: entry.DetailType, Source: entry.Source, Resources: append([]string{}, entry.Resources...),
		Detail: detail,
	}
	if entry.Time > 0 {
		e.Time = time.Unix(int64(entry.Time), 0).UTC().Format(time.RFC3339)
	}
	return putEventsResult{EventID: s.emit(e, now)}
}
