package doctor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// matches reports whether an event matches a pattern. One that cannot be read matches nothing.
func matches(pattern, event string) bool {
	p, err := eventpattern.Parse(pattern)
	if err != nil {
		return false
	}
	taken, err := p.Match(event)
	return err == nil && taken
}

// brings reports whether a rule, once it is enabled, brings an event to the queue.
func (f *Facts) brings(r Rule, event string) bool {
	return matches(r.Pattern, event) && (r.Topic == "" || f.Topics[r.Topic].Value.Subscription.takes(event))
}

// taken returns the names of the rules that match notices of a kind, by whether they are enabled,
// for every account whose notices are acted on. enabled is empty if the rules miss one of the
// accounts.
func taken(f *Facts, kind sample.Kind, of action) (enabled, disabled []string) {
	for _, account := range f.Options.EventAccounts {
		events := []string{body(f, kind, account, of)}
		if v, has := variants[kind]; has {
			events = append(events, strings.ReplaceAll(events[0], v.of, v.by))
		}
		for _, event := range events {
			var on, off []string
			for _, r := range f.Rules.Value {
				switch brings := f.brings(r, event); {
				case brings && r.Enabled:
					on = append(on, r.Name)
				case brings:
					off = append(off, r.Name)
				}
			}
			if len(on) == 0 {
				return nil, off
			}
			enabled = append(enabled, on...)
		}
	}
	return enabled, nil
}

// variants are what can be different in the sample of a kind, so that a rule takes one of the two and not the other.
var variants = map[sample.Kind]struct{ of, by string }{
	sample.StateChange: {"stopping", "shutting-down"},
	sample.Health: {
		"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED",
	},
}

// An action is what a lifecycle action is about. Notices of other kinds are about none.
type action struct{ group, hook string }

// actionsOf are those of the hooks that a group has, or could have.
func actionsOf(g Group) (all []action) {
	for _, h := range g.Hooks.Value {
		all = append(all, action{g.Name, h.Name})
	}
	for _, name := range g.OtherHooks {
		all = append(all, action{g.Name, name})
	}
	if len(all) == 0 {
		all = []action{{g.Name, "drain"}}
	}
	return all
}

// body is an event of a kind as EventBridge would have it in an account.
func body(f *Facts, kind sample.Kind, account string, of action) string {
	return sample.Notice{ //nolint:gosec // no hook ever had this token
		Kind: kind, ID: "7d5a1d4c-7f2b-4f3e-9d1a-000000000001", Time: f.Now, Start: f.Now.Add(24 * time.Hour),
		Instance: "i-0123456789abcdef0", Reservation: "cr-0123456789abcdef0",
		Partition: f.Options.Partition, Account: account, Region: f.Options.Region, Zone: f.Options.Region + "a",
		Group: of.group, Hook: of.hook, Token: "f2a5c0a1-6d3f-4b6a-9b62-000000000001",
	}.Body()
}

// notices are those of a kind, which a rule should send to the queue.
type notices struct {
	kind     sample.Kind
	subject  string // in words
	severity Status // if no rule sends them
	why      string // what is wrong then
	hint     string // what to think of before a rule is made; empty: nothing
	// need: they matter only if an instance behind a node is so; nil: they always do. where says how.
	need  func(Instance) bool
	where string
}

// ofRules makes the check that a rule sends notices to the queue.
func ofRules(n notices) func(*Facts) Finding {
	return func(f *Facts) Finding {
		enabled, disabled := taken(f, n.kind, action{})
		matter, karpenters := needs(f, n.need)
		switch {
		case len(enabled) > 0 && f.Rules.Err == nil:
			return ok("%s are sent to the queue by the rule %s", n.subject, list(enabled))
		case matter:
		case f.Instances.Err != nil:
			return unknown("whether an instance behind a node "+n.where, f.Instances.Err)
		case unseenInstances(f) > 0:
			return unclear("", "whether an instance behind a node %s is not known: EC2 does not show the caller "+
				"the instances of %s", n.where, overview.Count(unseenInstances(f), "node"))
		case karpenters:
			return ok("no instance behind a node %s, but for those that are left to Karpenter", n.where)
		default:
			return ok("no instance behind a node %s", n.where)
		}
		switch {
		case f.Rules.Err != nil:
			return unknown("whether a rule sends "+n.subject+" to the queue", f.Rules.Err)
		case n.kind != sample.Rebalance && karpenterHasAll(f):
			return ok("%s are left to Karpenter, whose nodes all are, with an interruption queue of its own", n.subject)
		}
		return missing(f, n, disabled)
	}
}

// needs reports whether an instance behind a node is so, and whether one of those is that Karpenter drains because of a
// queue of its own, which do not count otherwise.
func needs(f *Facts, so func(Instance) bool) (need, karpenters bool) {
	if so == nil || karpenterHasAll(f) {
		return true, false
	}
	instances := behind(f)
	for _, n := range f.Nodes.Value {
		switch i, known := instances[n.Name]; {
		case !known || !so(i):
		case n.Karpenter && karpenterListens(f):
			karpenters = true
		default:
			need = true
		}
	}
	return need, karpenters
}

// missing is the verdict if no rule matches something.
func missing(f *Facts, n notices, disabled []string) Finding {
	switch {
	case f.Queue.Err != nil: // it does not say who may send
		return unknown("whether a rule sends "+n.subject+" to the queue", blocked("queue", f.Queue.Err))
	case len(deliveryRoles(f)) > 0:
		return unseenFilter(f, n.subject)
	case len(disabled) > 0:
		return bad(n.severity, "aws events enable-rule --name "+sorted(disabled)[0],
			"%s are not sent to the queue: the rule %s is disabled; %s", n.subject, list(disabled), n.why)
	case hiddenRules(f) != nil:
		v := unknown("whether a rule sends "+n.subject+" to the queue", hiddenRules(f))
		v.Hint = "run doctor with a role of the account that has the rules"
		return v
	case unreadTopic(f) != nil:
		return unknown("whether a rule sends "+n.subject+" to the queue", unreadTopic(f))
	case customBus(f) != nil:
		return unknown("whether a rule sends "+n.subject+" to the queue", customBus(f))
	}
	if arn := filteredOut(f, n.kind); arn != "" {
		return bad(n.severity, "aws sns set-subscription-attributes --subscription-arn "+f.Topics[arn].Value.Subscription.ARN+
			" --attribute-name FilterPolicy --attribute-value '{}'",
			"%s are not sent to the queue: the filter of the subscription to %s leaves them out; %s", n.subject, arn, n.why)
	}
	what := fmt.Sprintf("no rule sends %s to the queue: %s", n.subject, n.why)
	if useless := useless(f); len(useless) > 0 {
		what += "; rules of the queue that match no notice at all, maybe because of a mistake in the pattern: " +
			list(useless)
	}
	name := f.Options.QueueName + "-" + string(n.kind)
	through, target := "queue", f.Options.queueARN()
	for _, arn := range slices.Sorted(maps.Keys(f.Topics)) {
		through, target = "topic", arn
	}
	hint := n.hint + "make a rule with the " + through + " as its target, and allow it in the " + through + "'s policy: "
	return bad(n.severity, hint+"aws events put-rule --name "+name+" --event-pattern '"+pattern(n.kind)+
		"' && aws events put-targets --rule "+name+" --targets Id=queue,Arn="+target, "%s", what)
}

// filteredOut returns a topic to which a rule sends notices of a kind that the filter of the
// queue's subscription leaves out; empty: there is none.
func filteredOut(f *Facts, kind sample.Kind) string {
	of := action{}
	if len(f.Groups.Value) > 0 {
		of = actionsOf(f.Groups.Value[0])[0]
	}
	for _, r := range f.Rules.Value {
		s := f.Topics[r.Topic].Value.Subscription
		filters := r.Enabled && s != nil && s.Filter != ""
		if filters && matches(r.Pattern, body(f, kind, f.Options.EventAccounts[0], of)) {
			return r.Topic
		}
	}
	return ""
}

// unseenFilter is the verdict if roles send to the queue: which events they bring, the filters of
// their subscribers or rules say, and whose account has those cannot be known from the queue.
func unseenFilter(f *Facts, subject string) Finding {
	const filter = `{"Filters":[{"Scope":"SYSTEM_METADATA","Pattern":` +
		`"{\"aws:Source\":[\"aws.autoscaling\",\"aws.ec2\",\"aws.health\"]}"}]}`
	v := unknown("whether "+subject+" are sent to the queue",
		fmt.Errorf("%s may send to it, and the filter of the subscriber, or the rule, cannot be seen from here",
			describe(deliveryRoles(f))))
	v.Hint = "let a subscriber of a custom event bus have the filter configuration " + filter +
		` and the retry policy {"MaxEventAgeInSeconds":86400}`
	return v
}

// useless returns the rules of the queue, with their patterns, that match no notice that the
// handler acts on.
func useless(f *Facts) (found []string) {
	actions := []action{{hook: "drain"}}
	for _, g := range f.Groups.Value {
		actions = append(actions, actionsOf(g)...)
	}
	var events []string
	for _, account := range f.Options.EventAccounts {
		for _, kind := range sample.Kinds {
			for _, of := range actions {
				events = append(events, body(f, kind, account, of))
			}
		}
	}
	for _, r := range f.Rules.Value {
		brings := func(event string) bool { return f.brings(r, event) }
		if r.Enabled && r.Pattern != "" && !slices.ContainsFunc(events, brings) {
			found = append(found, r.Name+" "+compact(r.Pattern))
		}
	}
	return found
}

// compact returns a pattern on one line, cut if it is long.
func compact(pattern string) string {
	const most = 200 // two lines of a terminal: a mistake is in the first values, lists of groups are long
	var b bytes.Buffer
	if json.Compact(&b, []byte(pattern)) != nil {
		b.Reset()
		b.WriteString(pattern)
	}
	if b.Len() > most {
		return strings.ToValidUTF8(b.String()[:most], "") + "…"
	}
	return b.String()
}

// hiddenRules is an error if accounts that the caller cannot see into may have rules that send to
// the queue: the account of the queue, whose buses others can send to, those of its topics, and
// those whose notices are acted on. It is nil if there is no such account.
func hiddenRules(f *Facts) error {
	caller := cmp.Or(f.Caller.Value.Account, f.Options.Account) // STS may be out of reach
	accounts := append([]string{f.Options.Account}, f.Options.EventAccounts...)
	for arn := range f.Topics {
		accounts = append(accounts, iampolicy.AccountOf(arn))
	}
	others := slices.DeleteFunc(accounts, func(id string) bool { return id == caller })
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("rules of account %s cannot be seen from account %s", list(others), caller)
}

// pattern is an event pattern to copy.
func pattern(kind sample.Kind) string {
	var event struct {
		DetailType string `json:"detail-type"`
	}
	_ = json.Unmarshal([]byte(sample.Notice{Kind: kind}.Body()), &event) // a sample is JSON
	return fmt.Sprintf(`{"source":[%q],"detail-type":[%q]}`, kind.Source(), event.DetailType)
}

var (
	ruleSpot = ofRules(notices{
		kind: sample.Spot, subject: "spot interruption warnings", severity: Failed,
		why:  "spot instances go away without a drain",
		need: func(i Instance) bool { return i.Spot }, where: "is a spot instance",
	})
	ruleRebalance = ofRules(notices{
		kind: sample.Rebalance, subject: "rebalance recommendations", severity: Warning,
		why: "drains of spot instances begin with the two minutes' warning at the earliest",
	})
	ruleStateChange = ofRules(notices{
		kind: sample.StateChange, subject: "state changes of instances", severity: Warning,
		why: "the handler does not learn that an instance is stopped or terminated by hand",
	})
	ruleHealth = ofRules(notices{
		kind: sample.Health, subject: "scheduled changes of AWS Health", severity: Warning,
		why: "instances are retired or rebooted without a drain",
	})
	ruleCapacityReservation = ofRules(notices{
		kind: sample.CapacityReservation, subject: "warnings about Capacity Reservations", severity: Failed,
		why:   "the instances go away without a drain",
		need:  func(i Instance) bool { return i.Interruptible || i.Block },
		where: "is in an interruptible Capacity Reservation or a Capacity Block",
	})
	ruleCapacityBlock = ofRules(notices{
		kind: sample.CapacityBlock, subject: "warnings about Capacity Blocks that end", severity: Warning,
		why:  "drains begin with the warning about each instance, minutes later",
		need: func(i Instance) bool { return i.Block }, where: "is in a Capacity Block",
	})
	ruleTerminate = ofHooks(notices{
		kind: sample.ASGTerminate, subject: "terminations of Auto Scaling groups", severity: Failed,
		why: "the hook keeps the instance until its timeout, and nobody drains it",
	})
	ruleLaunch = ofHooks(notices{
		kind: sample.ASGLaunch, subject: "launches of Auto Scaling groups", severity: Warning,
		why: "instances wait until the hook has timed out, or somebody else completes it",
	})
)

// ofHooks makes the check that the queue hears of each hook of the groups behind the nodes, by a
// rule or straight from Auto Scaling.
func ofHooks(n notices) func(*Facts) Finding {
	n.hint = "if somebody else completes these hooks, set lifecycle-hook-names to those of this handler; else "
	terminating, subject := n.kind == sample.ASGTerminate, n.subject
	return func(f *Facts) Finding {
		switch err := f.groupsErr(); {
		case err != nil:
			return unknown("whether the queue gets "+subject, err)
		case f.Rules.Err != nil:
			return unknown("whether a rule sends "+subject+" to the queue", f.Rules.Err)
		}
		var deaf, disabled []string
		hooks := 0
		targets := append(slices.Collect(maps.Keys(f.Topics)), cmp.Or(f.Queue.Value.ARN, f.Options.queueARN()))
		for _, g := range f.Groups.Value {
			if g.Hooks.Err != nil {
				return unknown("whether the queue gets "+subject, g.Hooks.Err)
			}
			for _, h := range g.Hooks.Value {
				if h.Terminating != terminating {
					continue
				}
				hooks++
				enabled, off := taken(f, n.kind, action{g.Name, h.Name})
				if len(enabled) == 0 && !slices.Contains(targets, h.TargetARN) {
					if g.Tags.Err != nil && len(f.Options.HookNames) == 0 { // they may be those of EKS
						return unknown("whose the hooks for "+subject+" are", g.Tags.Err)
					}
					deaf = append(deaf, g.Name)
					disabled = append(disabled, off...)
				}
			}
		}
		switch {
		case hooks == 0:
			return ok("no group behind a node has a hook for %s", subject)
		case len(deaf) == 0:
			return ok("%s are sent to the queue", subject)
		}
		these := n
		if terminating && f.Options.Sweep {
			these.severity, these.why = Warning, "only the search for hooks finds them, up to a minute late"
		}
		v := missing(f, these, disabled)
		v.What += "; affected: " + list(deaf)
		return v
	}
}

func ruleTargets(f *Facts) Finding {
	if f.Rules.Err != nil {
		return unknown("what the rules do with an event", f.Rules.Err)
	}
	var changed []string
	for _, r := range sending(f.Rules.Value) {
		if slices.ContainsFunc(r.Targets, func(t Target) bool { return t.Changed }) {
			changed = append(changed, r.Name)
		}
	}
	if len(changed) > 0 {
		return fail("set the target's input to the matched event",
			"the rule %s changes events on their way (Input, InputPath or InputTransformer): they cannot be read", list(changed))
	}
	return ok("rules send events as they are")
}
