package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/arn"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

// A sender is what sends notices to a queue: a rule, a topic, or a role, with which rules of other
// accounts and subscribers of custom event buses deliver.
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-service-cross-account.html
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-custom-bus-permissions.html
type sender struct {
	name    string // for people, such as "rule spot"
	service string // the principal that sends; empty: the role
	arn     string // of the rule, the topic or the role
}

func ruleSender(name, arn string) sender { return sender{name, eventBridge, arn} }

func roleSender(arn string) sender {
	if iampolicy.IsAccount(arn) {
		return sender{name: "account " + iampolicy.AccountOf(arn), arn: arn}
	}
	return sender{name: "role " + arn, arn: arn}
}

// senders are what sends for a rule: the role of a target, or the rule.
func (r Rule) senders() (all []sender) {
	for _, t := range r.Targets {
		if t.RoleARN != "" {
			all = append(all, roleSender(t.RoleARN))
		} else {
			all = append(all, ruleSender("rule "+r.Name, r.ARN))
		}
	}
	return all
}

// request is what the sender asks of a policy.
func (s sender) request(action, resource string) iampolicy.Request {
	r := iampolicy.Request{
		Action: action, Resource: resource, Context: map[string]string{"aws:securetransport": "true"},
	}
	if s.service == "" {
		r.Principal = s.arn
		r.Context["aws:principalarn"], r.Context["aws:principalaccount"] = s.arn, iampolicy.AccountOf(s.arn)
		return r
	}
	r.Service = s.service
	r.Context["aws:sourcearn"], r.Context["aws:sourceaccount"] = s.arn, iampolicy.AccountOf(s.arn)
	return r
}

// senders returns what sends to the queue: the rules in the account of the queue, rules with a
// role, topics. If there are none, it returns the roles that the policy of the queue lets in, else
// a rule as the account could have it. unseen says why there may be rules that are not among them.
func senders(f *Facts) (all []sender, unseen error) {
	for _, r := range sending(f.Rules.Value) {
		for _, s := range r.senders() {
			if r.Topic == "" && (s.service == "" || iampolicy.AccountOf(s.arn) == f.Options.Account) {
				all = append(all, s)
			}
		}
	}
	for _, arn := range slices.Sorted(maps.Keys(f.Topics)) {
		all = append(all, sender{"topic " + arn, snsService, arn})
	}
	if len(all) > 0 {
		slices.SortFunc(all, func(a, b sender) int { return cmp.Compare(a.name, b.name) })
		return slices.Compact(all), nil
	}
	if roles := deliveryRoles(f); len(roles) > 0 && !f.policy().Names(eventBridge) {
		return roles, nil
	}
	return []sender{ruleSender("a rule", anyRule(f, f.Options.Account))}, cmp.Or(f.Rules.Err, hiddenRules(f), errNoRules)
}

// sending are the rules that are enabled; if none is, all of them, as they may be soon.
func sending(rules []Rule) []Rule {
	enabled := slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return !r.Enabled })
	if len(enabled) == 0 {
		return rules
	}
	return enabled
}

// decidesItself reports whether the policies of the sender may let it in where that of a resource says nothing of it:
// it is a role of the same account.
func (s sender) decidesItself(resource string) bool {
	return s.service == "" && iampolicy.AccountOf(s.arn) == iampolicy.AccountOf(resource)
}

// refusedSenders are the names of those that the policy of a resource does not let in. The error says of whom that is
// not known.
func refusedSenders(p iampolicy.Policy, all []sender, action, resource string) (out []string, unsure error) {
	var conditional, delegated []string
	for _, s := range all {
		switch verdict := p.Evaluate(s.request(action, resource)); {
		case verdict == iampolicy.Refused && s.decidesItself(resource):
			delegated = append(delegated, s.name)
		case verdict == iampolicy.Unclear && iampolicy.IsAccount(s.arn): // an account as a whole is what the policy names
		case verdict == iampolicy.Unclear:
			conditional = append(conditional, s.name)
		case verdict != iampolicy.Allowed:
			out = append(out, s.name)
		}
	}
	switch {
	case len(conditional) > 0:
		unsure = fmt.Errorf("for %s %w", list(conditional), errConditions)
	case len(delegated) > 0:
		unsure = fmt.Errorf("for %s %w", list(delegated), errDelegated)
	}
	return out, unsure
}

// deliveryRoles returns the roles, and the other accounts, that the policy of the queue lets send.
// The account of the queue does not count: many policies name it that nobody wrote for this. The
// role of the handler, which reads, does not count either.
func deliveryRoles(f *Facts) []sender {
	q, p := f.Queue.Value, f.policy()
	var roles []sender
	for _, who := range slices.Compact(sorted(p.Principals("sqs:SendMessage", q.ARN))) {
		s := roleSender(who)
		switch verdict := p.Evaluate(s.request("sqs:SendMessage", q.ARN)); {
		case verdict != iampolicy.Allowed && verdict != iampolicy.Unclear:
		case iampolicy.IsAccount(who) && iampolicy.AccountOf(who) == f.Options.Account:
		case !iampolicy.IsAccount(who) && !strings.Contains(who, ":role/"):
		case hasRole(f.Caller.Value.ARN, who):
		default:
			roles = append(roles, s)
		}
	}
	return roles
}

// customBus is an error if the queue's policy lets in a rule of another bus than the default one.
func customBus(f *Facts) error {
	for _, arn := range f.policy().Sources(eventBridge) {
		if _, rule, is := strings.Cut(arn, ":rule/"); is && strings.Contains(rule, "/") {
			return fmt.Errorf("the queue's policy names a rule of another bus, %s, and doctor asks for those of the default bus",
				arn)
		}
	}
	return nil
}

// policy is the policy of the queue. One that cannot be read says nothing: the check of it says so.
func (f *Facts) policy() iampolicy.Policy {
	p, _ := iampolicy.Parse(f.Queue.Value.Policy)
	return p
}

// ofKind returns the ARNs of the senders of one service, or of the roles.
func ofKind(all []sender, service string) []string {
	var arns []string
	for _, s := range all {
		if s.service == service {
			arns = append(arns, s.arn)
		}
	}
	return sorted(arns)
}

// letIn are the policy statements that let senders send to a queue.
func letIn(f *Facts, queue string, all []sender) string {
	var statements []string
	for _, service := range []string{eventBridge, snsService, ""} {
		arns := ofKind(all, service)
		if len(arns) == 0 {
			continue
		}
		if len(arns) == 1 && arns[0] == anyRule(f, f.Options.Account) {
			arns[0] = strings.TrimSuffix(arns[0], "any") + "*"
		}
		statement := map[string]any{"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": queue}
		if service == "" {
			statement["Principal"] = map[string]any{"AWS": arns}
		} else {
			statement["Principal"] = map[string]any{"Service": service}
			statement["Condition"] = map[string]any{"ArnLike": map[string]any{"aws:SourceArn": arns}}
		}
		statements = append(statements, jsonText(statement))
	}
	return strings.Join(statements, ",")
}

// describe says who the senders are.
func describe(all []sender) string {
	services := map[string]string{eventBridge: "EventBridge", snsService: "SNS"}
	var who []string
	for _, s := range all {
		who = append(who, cmp.Or(services[s.service], "the "+s.name))
	}
	return list(who)
}

// hasRole reports whether a caller has assumed a role. The ARN of a session has the role's name
// without its path.
func hasRole(caller, role string) bool {
	name := roleName(role)
	return name != "" && name == roleName(caller) && iampolicy.AccountOf(role) == iampolicy.AccountOf(caller)
}

// roleName returns the name of the role in an ARN of a role or of its session; empty if the ARN is
// of neither.
func roleName(text string) string {
	parsed, _ := arn.Parse(text) // of what is none it has nothing
	kind, name, _ := strings.Cut(parsed.Resource, "/")
	switch kind {
	case "assumed-role":
		name, _, _ = strings.Cut(name, "/")
		return name
	case "role":
		return name[strings.LastIndexByte(name, '/')+1:]
	}
	return ""
}
