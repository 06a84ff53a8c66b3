// Package iampolicy evaluates IAM policy documents of queues, topics, keys and roles: whether
// one allows an AWS service, or a role, to do something. It makes no requests, and answers
// Unclear where it cannot tell. IAM's own evaluation, iam:SimulateCustomPolicy, would need
// a call and a permission; doctor gives an answer without either.
//
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
package iampolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Request is what a service, or an identity, wants to do.
type Request struct {
	// Service is the principal, such as events.amazonaws.com. Principal is the ARN of a role that is
	// the principal instead. If both are empty, it is the identity that the policy is attached to.
	Service, Principal string
	Action             string // such as sqs:SendMessage
	Resource           string // ARN
	// Context has the condition keys of the request, in lower case, such as aws:sourcearn.
	Context map[string]string
}

// Verdict is the result of an evaluation. The zero value is a refusal.
type Verdict uint8

// The verdicts.
const (
	Refused Verdict = iota // no statement lets it through
	Denied                 // a statement forbids it
	Unclear                // it depends on something that is not read here
	Allowed
)

// String is the verdict in a word.
func (v Verdict) String() string {
	return [...]string{"refused", "denied", "unclear", "allowed"}[v]
}

// A Policy is the policy document of a resource or of an identity.
type Policy struct{ statements []statement }

// Parse reads a document. An empty one has no statements.
func Parse(document string) (Policy, error) {
	if strings.TrimSpace(document) == "" {
		return Policy{}, nil
	}
	var d struct{ Statement oneOrMore[statement] }
	if err := json.Unmarshal([]byte(document), &d); err != nil {
		return Policy{}, fmt.Errorf("read the policy: %w", err)
	}
	return Policy{d.Statement}, nil
}

// Evaluate says whether the policy allows the request. A statement that denies it wins. What is
// unclear never counts as allowed.
func (p Policy) Evaluate(r Request) Verdict {
	allowed, denied := no, no
	for _, s := range p.statements {
		switch s.Effect {
		case "Allow":
			allowed = max(allowed, s.applies(r))
		case "Deny":
			denied = max(denied, s.applies(r))
		}
	}
	switch {
	case denied == yes:
		return Denied
	case allowed == no:
		return Refused
	case denied == maybe || allowed == maybe:
		return Unclear
	}
	return Allowed
}

// Names reports whether a statement allows anything to the service by its name: a hint that the
// policy is about that service, whatever the conditions.
func (p Policy) Names(service string) bool {
	return slices.ContainsFunc(p.statements, func(s statement) bool {
		return s.Effect == "Allow" && s.Principal.isService(service)
	})
}

// Principals returns the identities that statements allow an action on a resource to, in the order
// of the document: ARNs of roles, users and accounts, ids of accounts, and what a condition demands
// of aws:PrincipalArn. Whether the other conditions are met is for Evaluate to say.
func (p Policy) Principals(action, resource string) []string {
	var all []string
	for _, s := range p.statements {
		if s.Effect != "Allow" || s.covers(action, resource) != yes {
			continue
		}
		named := slices.DeleteFunc(slices.Clone(s.Principal.AWS), func(who string) bool { return who == "*" })
		if s.Principal.Any {
			named = append(named, s.demands("aws:principalarn")...)
		}
		all = append(all, named...)
	}
	return all
}

// Sources returns what the statements that allow anything to a service, or to everybody, demand of aws:SourceArn, in
// the order of the document: ARNs, which can have wildcards, and can be of other services.
func (p Policy) Sources(service string) []string {
	var all []string
	for _, s := range p.statements {
		if s.Effect == "Allow" && (s.Principal.Any || s.Principal.isService(service)) {
			all = append(all, s.demands("aws:sourcearn")...)
		}
	}
	return all
}

// demands returns the values of which the conditions of the statement want one for a key.
func (s statement) demands(key string) []string {
	var all []string
	for operator, keys := range s.Condition {
		switch strings.TrimSuffix(operator, "IfExists") {
		case "StringEquals", "StringLike", "ArnEquals", "ArnLike":
		default:
			continue
		}
		for name, values := range keys {
			for _, v := range values {
				if strings.EqualFold(name, key) {
					all = append(all, fmt.Sprint(v))
				}
			}
		}
	}
	slices.Sort(all) // a map has no order
	return all
}

type statement struct {
	Effect       string
	Principal    principal
	NotPrincipal json.RawMessage
	Action       oneOrMore[string]
	NotAction    oneOrMore[string]
	Resource     oneOrMore[string]
	NotResource  oneOrMore[string]
	Condition    map[string]map[string]oneOrMore[any]
}

// answer is no, maybe or yes, in this order. maybe means that it depends on something unknown.
type answer uint8

const (
	no answer = iota
	maybe
	yes
)

func is(b bool) answer {
	if b {
		return yes
	}
	return no
}

// applies says whether the statement is about the request.
func (s statement) applies(r Request) answer {
	ofIdentity := r.Service == "" && r.Principal == "" // its policy names no principal
	who := is(s.Principal.Any || ofIdentity || s.Principal.isService(r.Service))
	if r.Principal != "" {
		for _, name := range s.Principal.AWS {
			who = max(who, isOf(r.Principal, name))
		}
	}
	if len(s.NotPrincipal) > 0 {
		who = maybe
	}
	result := min(who, s.covers(r.Action, r.Resource))
	for operator, keys := range s.Condition {
		for key, values := range keys {
			result = min(result, r.meets(operator, strings.ToLower(key), values))
		}
	}
	return result
}

// covers says whether the statement is about an action on a resource.
func (s statement) covers(action, resource string) answer {
	asIs := func(pattern string) string { return pattern }
	return min(about(s.Action, s.NotAction, strings.ToLower(action), strings.ToLower),
		about(s.Resource, s.NotResource, resource, asIs))
}

// isOf says whether an identity is the principal that a statement names. If that is the identity's
// account, the policy of the identity decides, which is not known here.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html
func isOf(identity, named string) answer {
	if identity == named {
		return yes
	}
	if account := AccountOf(identity); account != "" && account == AccountOf(named) && IsAccount(named) {
		return maybe
	}
	return no
}

// IsAccount reports whether a principal is an account as a whole.
func IsAccount(principal string) bool {
	return !strings.Contains(principal, ":") || strings.HasSuffix(principal, ":root")
}

// AccountOf returns the account of an ARN, or of the id of an account.
func AccountOf(principal string) string {
	if parts := strings.Split(principal, ":"); len(parts) > 4 {
		return parts[4]
	} else if len(parts) == 1 {
		return principal
	}
	return ""
}

// about says whether a value matches one of the patterns in, or none of notIn. If both are empty
// the answer is yes, because the policy of a key need not name its resource.
func about(in, notIn []string, value string, fold func(string) string) answer {
	matches := func(pattern string) bool { return like(fold(pattern), value) }
	if len(notIn) > 0 {
		return is(!slices.ContainsFunc(notIn, matches))
	}
	return is(len(in) == 0 || slices.ContainsFunc(in, matches))
}

// meets says whether the request meets a condition.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
func (r Request) meets(operator, key string, values []any) answer {
	name, optional := strings.CutSuffix(operator, "IfExists")
	value, given := r.Context[key]
	if key == "aws:principalisawsservice" {
		value, given = strconv.FormatBool(r.Service != ""), true
	}
	var matches func(pattern string) bool
	negated := false
	switch name {
	case "Null":
		if !given && !known[key] {
			return maybe
		}
		return is(len(values) == 1 && fmt.Sprint(values[0]) == fmt.Sprint(!given))
	case "StringNotEquals", "StringNotEqualsIgnoreCase", "StringNotLike", "ArnNotEquals", "ArnNotLike":
		negated = true
		name = strings.Replace(name, "Not", "", 1)
	}
	switch name {
	case "StringEquals":
		matches = func(p string) bool { return p == value }
	case "StringEqualsIgnoreCase", "Bool":
		matches = func(p string) bool { return strings.EqualFold(p, value) }
	case "ArnEquals", "ArnLike":
		matches = func(p string) bool { return likeARN(p, value) }
	case "StringLike":
		matches = func(p string) bool { return like(p, value) }
	default:
		return maybe
	}
	// A request without the key meets only negated and optional conditions. For keys that are not
	// in known nobody can say whether the request has them.
	if !given {
		if !known[key] || r.Principal != "" && key == organization {
			return maybe
		}
		return is(optional || negated)
	}
	one := slices.ContainsFunc(values, func(v any) bool { return matches(fmt.Sprint(v)) })
	return is(one != negated)
}

// organization is a key that requests of roles have, and those of services have not.
const organization = "aws:principalorgid"

// known are the keys that Context has if the request has them. If one of them is missing in
// Context, the request does not have it.
var known = map[string]bool{
	"aws:sourcearn": true, "aws:sourceaccount": true, "aws:securetransport": true,
	"aws:sourcevpc": true, "aws:sourcevpce": true, "aws:sourceip": true,
	"aws:principalarn": true, "aws:principalaccount": true, organization: true, "aws:principaltype": true,
}

// likeARN compares the six parts of ARNs one by one: a wildcard does not reach into the next part.
func likeARN(pattern, value string) bool {
	const parts = 6
	patterns, values := strings.SplitN(pattern, ":", parts), strings.SplitN(value, ":", parts)
	if len(patterns) != len(values) {
		return pattern == "*"
	}
	return slices.EqualFunc(patterns, values, like)
}

// like matches with * and ?, as policies do. Its time is quadratic at worst.
func like(pattern, value string) bool {
	star, resume := -1, 0 // where the last * stands, and up to where it has eaten
	at := 0
	for k := 0; k < len(value); {
		switch {
		case at < len(pattern) && pattern[at] == '*':
			star, resume = at, k
			at++
		case at < len(pattern) && (pattern[at] == '?' || pattern[at] == value[k]):
			at++
			k++
		case star >= 0:
			resume++
			at, k = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[at:], "*") == ""
}

// principal is "*", or an object of lists by type.
type principal struct {
	Any          bool
	Service, AWS []string
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *principal) UnmarshalJSON(text []byte) error {
	var word string
	if json.Unmarshal(text, &word) == nil {
		if word != "*" {
			return errors.New("a principal that is neither * nor an object")
		}
		p.Any = true
		return nil
	}
	var object map[string]oneOrMore[string]
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	p.Service, p.AWS = object["Service"], object["AWS"]
	p.Any = p.Any || slices.Contains(p.AWS, "*")
	return nil
}

// isService reports whether the principal is the service, by its name.
func (p principal) isService(name string) bool {
	return slices.ContainsFunc(p.Service, func(s string) bool { return strings.EqualFold(s, name) })
}

// oneOrMore is a list that may be written as its only element.
type oneOrMore[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *oneOrMore[T]) UnmarshalJSON(text []byte) error {
	var list []T
	if json.Unmarshal(text, &list) == nil {
		*l = list
		return nil
	}
	*l = make(oneOrMore[T], 1)
	return json.Unmarshal(text, &(*l)[0])
}
