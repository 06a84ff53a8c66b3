package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/policy"
)

// takers are the names of the rules that take a body, by whether they are enabled.
func takers(rules []Rule, body string) (enabled, disabled []string) {
	for _, r := range rules {
		p, err := eventpattern.Parse(r.Pattern)
		if err != nil {
			continue
		}
		if taken, err := p.Match(body); err != nil || !taken {
			continue
		}
		if r.Enabled {
			enabled = append(enabled, r.Name)
		} else {
			disabled = append(disabled, r.Name)
		}
	}
	return enabled, disabled
}

// body is what EventBridge would have of a kind in this account.
func body(f *Facts, kind sample.Kind, group string) string {
	return sample.Notice{
		Kind: kind, ID: "7d5a1d4c-7f2b-4f3e-9d1a-000000000001", Time: f.Now, Start: f.Now.Add(24 * time.Hour), Instance: "i-0123456789abcdef0",
		Partition: f.partition(), Account: f.Options.Account, Region: f.Options.Region, Zone: f.Options.Region + "a",
		Group: group, Hook: "drain", Token: "f2a5c0a1-6d3f-4b6a-9b62-000000000001",
	}.Body()
}

// ofRules is the check that a rule takes notices of a kind. bad says what their absence means.
func ofRules(kind sample.Kind, subject string, bad Status, why string) func(*Facts) verdict {
	return func(f *Facts) verdict {
		if f.Rules.Err != nil {
			return unknown("whether a rule sends "+subject+" to the queue", f.Rules.Err)
		}
		text := body(f, kind, "")
		enabled, disabled := takers(f.Rules.Value, text)
		if len(enabled) > 0 {
			return ok("%s are sent to the queue by the rule %s", subject, list(enabled))
		}
		return missing(f, subject, disabled, bad, why, pattern(kind))
	}
}

// missing is the verdict where no rule takes something.
func missing(f *Facts, subject string, disabled []string, bad Status, why, pattern string) verdict {
	switch {
	case len(disabled) > 0:
		return verdict{bad, fmt.Sprintf("%s are not sent to the queue: the rule %s is disabled; %s", subject, list(disabled), why), "aws events enable-rule --name " + sorted(disabled)[0]}
	case throughTopic(f):
		return verdict{Unknown, "whether a rule sends " + subject + " to the queue: SNS may do so, and its topics are not read here", ""}
	}
	return verdict{bad, fmt.Sprintf("no rule sends %s to the queue: %s", subject, why), "make a rule with the queue as its target and the pattern " + pattern}
}

// throughTopic reports whether SNS may send to the queue.
func throughTopic(f *Facts) bool {
	p, err := policy.Parse(f.Queue.Value.Policy)
	return err == nil && p.Names(sns)
}

// pattern is the one to copy.
func pattern(kind sample.Kind) string {
	types := map[sample.Kind]string{
		sample.Spot:         "EC2 Spot Instance Interruption Warning",
		sample.Rebalance:    "EC2 Instance Rebalance Recommendation",
		sample.StateChange:  "EC2 Instance State-change Notification",
		sample.Health:       "AWS Health Event",
		sample.ASGTerminate: "EC2 Instance-terminate Lifecycle Action",
		sample.ASGLaunch:    "EC2 Instance-launch Lifecycle Action",
	}
	return fmt.Sprintf(`{"source":[%q],"detail-type":[%q]}`, kind.Source(), types[kind])
}

var (
	ruleSpot = ofRules(sample.Spot, "spot interruption warnings", Failed,
		"spot instances go away undrained")
	ruleRebalance = ofRules(sample.Rebalance, "rebalance recommendations", Warning,
		"drains of spot instances begin with the two minutes' warning at the earliest")
	ruleStateChange = ofRules(sample.StateChange, "state changes of instances", Warning,
		"what is stopped or terminated by hand is not noticed")
	ruleHealth = ofRules(sample.Health, "scheduled changes of AWS Health", Warning,
		"retirements and reboots come as a surprise")
	ruleTerminate = ofHooks(sample.ASGTerminate, true)
	ruleLaunch    = ofHooks(sample.ASGLaunch, false)
)

// ofHooks is the check that the queue hears of each hook of the groups behind
// the nodes: by a rule, or straight from Auto Scaling.
func ofHooks(kind sample.Kind, terminating bool) func(*Facts) verdict {
	subject, why := "launches of Auto Scaling groups", "instances wait until the hook has timed out"
	if terminating {
		subject, why = "terminations of Auto Scaling groups", "the hook keeps the instance waiting, and nobody drains it"
	}
	return func(f *Facts) verdict {
		switch {
		case f.Groups.Err != nil:
			return unknown("whether the queue hears of "+subject, f.Groups.Err)
		case f.Rules.Err != nil:
			return unknown("whether a rule sends "+subject+" to the queue", f.Rules.Err)
		}
		var deaf, disabled []string
		hooks := 0
		for _, g := range f.Groups.Value {
			if g.Hooks.Err != nil {
				return unknown("whether the queue hears of "+subject, g.Hooks.Err)
			}
			for _, h := range g.Hooks.Value {
				if h.Terminating != terminating {
					continue
				}
				hooks++
				enabled, off := takers(f.Rules.Value, body(f, kind, g.Name))
				if len(enabled) == 0 && (h.TargetARN == "" || h.TargetARN != f.Queue.Value.ARN) {
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
		slices.Sort(deaf)
		v := missing(f, subject, slices.Compact(disabled), Failed, why, pattern(kind))
		v.what += "; affected: " + list(slices.Compact(deaf))
		return v
	}
}

func ruleTargets(f *Facts) verdict {
	if f.Rules.Err != nil {
		return unknown("what the rules do with an event", f.Rules.Err)
	}
	var changed, ungrouped []string
	for _, r := range f.Rules.Value {
		for _, t := range r.Targets {
			if t.Changed {
				changed = append(changed, r.Name)
			}
			if f.Queue.Value.FIFO && t.MessageGroup == "" {
				ungrouped = append(ungrouped, r.Name)
			}
		}
	}
	switch {
	case len(changed) > 0:
		return fail("set the target's input to the matched event", "the rule %s changes events on their way (Input, InputPath or InputTransformer): they cannot be read", list(changed))
	case len(ungrouped) > 0:
		return fail("make a standard queue", "the rule %s sends to a FIFO queue without a message group: nothing arrives", list(ungrouped))
	}
	return ok("rules send events as they are")
}

func ruleDeadLetters(f *Facts) verdict {
	if f.Rules.Err != nil {
		return unknown("what becomes of events that cannot be delivered", f.Rules.Err)
	}
	var without []string
	for _, r := range f.Rules.Value {
		if slices.ContainsFunc(r.Targets, func(t Target) bool { return t.DeadLetters == "" }) {
			without = append(without, r.Name)
		}
	}
	if len(without) > 0 {
		return warn("give the target a dead-letter queue of its own (not that of the queue's redrive policy alone)",
			"events that EventBridge cannot deliver are dropped without a trace: the target of the rule %s has no dead-letter queue", list(without))
	}
	return ok("events that EventBridge cannot deliver are kept")
}
