package app

import (
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// followPolicy reads the policy file, if the options name one; else it returns nil. The error is of type
// [options.Problems].
func followPolicy(o *options.Options, log logr.Logger, m *telemetry.Metrics) (*policyfile.Follower, error) {
	if o.PolicyFile == "" {
		return nil, nil //nolint:nilnil // nil is a Follower without a file
	}
	f, err := policyfile.Follow(o.PolicyFile, log.WithName("policy"), m.PolicyValid)
	var wrong options.Problems
	if err == nil {
		for _, rule := range f.Rules().Nodes {
			if rule.By == intent.ByKarpenter && !o.DrainByKarpenter {
				wrong = append(wrong, options.Problem{Name: "policy-file", Text: o.PolicyFile + ", rule " + rule.Name +
					" says by: karpenter, which needs the option drain-by-karpenter"})
			}
		}
		if len(wrong) > 0 {
			return nil, wrong
		}
		return f, nil
	}
	for _, p := range policyfile.ProblemsOf(err) {
		wrong = append(wrong, options.Problem{Name: "policy-file", Text: o.PolicyFile + ", " + p.String()})
	}
	if len(wrong) == 0 { // it cannot be read
		wrong = options.Problems{{Name: "policy-file", Text: err.Error()}}
	}
	return nil, wrong
}
