package doctor

import (
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

func isKarpenter(p Pod) bool { return p.Labels["app.kubernetes.io/name"] == "karpenter" }

// karpenterQueue is the queue from which Karpenter receives interruptions; empty: it receives
// none.
// https://karpenter.sh/docs/reference/settings/
func karpenterQueue(p Pod) string {
	if queue := p.Env["INTERRUPTION_QUEUE"]; queue != "" {
		return queue
	}
	for k, arg := range p.Args {
		if value, ok := strings.CutPrefix(arg, "--interruption-queue="); ok {
			return value
		}
		if arg == "--interruption-queue" && k+1 < len(p.Args) {
			return p.Args[k+1]
		}
	}
	return ""
}

// karpenterListens reports whether Karpenter has an interruption queue that is not ours.
func karpenterListens(f *Facts) bool {
	return slices.ContainsFunc(f.Pods.Value, func(p Pod) bool {
		queue := karpenterQueue(p)
		return isKarpenter(p) && queue != "" && queue != f.Options.QueueURL && queue != f.Options.QueueName
	})
}

// karpenterHasAll reports whether Karpenter drains every node on EC2 because of its own queue.
func karpenterHasAll(f *Facts) bool {
	onEC2 := slices.DeleteFunc(slices.Clone(f.Nodes.Value), func(n Node) bool { return n.Fargate })
	others := slices.ContainsFunc(onEC2, func(n Node) bool { return !n.Karpenter })
	return len(onEC2) > 0 && !others && karpenterListens(f)
}

// karpenterApart reports whether Karpenter and the handler drain different nodes, or for different
// reasons: the handler ignores Karpenter's nodes because they lack the tag, or its rules send it
// only rebalance recommendations, on which Karpenter does not act. It is false if that is not
// known.
// https://karpenter.sh/docs/concepts/disruption/#interruption
func karpenterApart(f *Facts) bool {
	if f.Rules.Err == nil && f.Queue.Err == nil && hiddenRules(f) == nil && unreadTopic(f) == nil &&
		len(deliveryRoles(f)) == 0 {
		others := slices.DeleteFunc(slices.Clone(sample.Kinds), func(k sample.Kind) bool { return k == sample.Rebalance })
		sent := func(k sample.Kind) bool {
			enabled, _ := taken(f, k, action{hook: "drain"})
			return len(enabled) > 0
		}
		if !slices.ContainsFunc(others, sent) {
			return true
		}
	}
	if f.Nodes.Err != nil || f.Options.CheckTag && f.Instances.Err != nil {
		return false
	}
	instances := behind(f)
	return !slices.ContainsFunc(f.Nodes.Value, func(n Node) bool {
		_, gap := uncovered(f, n, instances)
		return n.Karpenter && gap == covers
	})
}
