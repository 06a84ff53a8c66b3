package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// nodes checks which nodes the notices find, and says what keeps them from the others.
func nodes(f *Facts) Finding {
	if f.Nodes.Err != nil {
		return unknown("which nodes there are", f.Nodes.Err)
	}
	if f.Options.NoQueue && f.Pods.Err != nil {
		return unknown("which nodes have a pod that reads the metadata", f.Pods.Err)
	}
	if f.Instances.Err != nil && needsEC2(f) {
		return noInstances(f)
	}
	instances := behind(f)
	covered, fargate, karpenters := 0, 0, 0
	var not, untagged []string // names of nodes, ids of instances
	var gaps []gap
	for _, n := range f.Nodes.Value {
		switch why, gap := uncovered(f, n, instances); {
		case n.Fargate:
			fargate++
		case gap == covers:
			covered++
		case gap == noTag && n.Karpenter && karpenterListens(f):
			karpenters++
		default:
			not = append(not, n.Name+" ("+why+")")
			gaps = append(gaps, gap)
			if gap == noTag {
				untagged = append(untagged, instances[n.Name].ID)
			}
		}
	}
	all := covered + len(not)
	rest := ""
	if fargate > 0 {
		rest += fmt.Sprintf("; %d on Fargate do not count", fargate)
	}
	if karpenters > 0 {
		rest += fmt.Sprintf("; %s without the tag are left to Karpenter", overview.Count(karpenters, "node"))
	}
	what := fmt.Sprintf("%d of %s are covered%s", covered, overview.Count(all, "node"), rest)
	switch {
	case all == 0 && karpenters > 0:
		return warn("tag the instances of the nodes that this handler is for", "no node is covered%s", rest)
	case all == 0:
		return warn("see that this is the right cluster", "there are no nodes on EC2%s", rest)
	case covered == 0:
		return fail(remedies(f, gaps, untagged), "%s: %s", what, list(not))
	case len(not) > 0:
		return warn(remedies(f, gaps, untagged), "%s, not: %s", what, list(not))
	}
	return ok("%s", what)
}

// needsEC2 reports whether nodes cannot be told apart without EC2.
func needsEC2(f *Facts) bool {
	return f.Options.CheckTag || !f.Options.NoQueue && slices.ContainsFunc(f.Nodes.Value,
		func(n Node) bool { return n.InstanceID == "" && !n.Fargate })
}

// noInstances is the verdict where EC2 does not say which instances there are.
func noInstances(f *Facts) Finding {
	err := f.Instances.Err
	if denied(err) && f.Beside == nil { // else the handler may have the permission
		return fail("add ec2:DescribeInstances to the role, or set check-tag-before-draining=false where all nodes have a "+
			"provider id",
			"no node is covered: %v", err)
	}
	return unknown("which instances are behind the nodes", err)
}

// A gap is the reason why notices do not find a node, and what to do about it.
type gap string

const (
	covers     gap = "" // they find it
	noInstance gap = "no provider id: run the kubelet with --cloud-provider=external and the AWS cloud controller " +
		"manager, or name the node like its instance's private DNS name"
	noProviderMatch gap = "unknown to EC2: run the handler with a role of the account, and a queue in the region, of " +
		"these instances"
	notEC2 gap = "another provider id: name a node of EC2 like its instance's private DNS name; for nodes that are not " +
		"of EC2 AWS sends no notice, and no handler can drain them in time"
	noReporter gap = "no pod of the DaemonSet: see that it is there, and that its pods are ready on these nodes"
	noMetadata gap = "no answer of the metadata: see whether a NetworkPolicy, a hop limit of 1, or the instance's " +
		"metadata options keep the pod from it"
	noTag gap = "no tag"
)

// remedies says what to do about the gaps. The command comes last; it is for the instances without the tag.
func remedies(f *Facts, gaps []gap, untagged []string) string {
	var all []string
	for _, g := range []gap{noInstance, noProviderMatch, notEC2, noReporter, noMetadata, noTag} {
		if slices.Contains(gaps, g) {
			all = append(all, string(g))
		}
	}
	hint := strings.Join(all, "; ")
	if len(untagged) == 0 {
		return hint
	}
	// AWS accepts 1,000 ids; this many can still be read before the command is run.
	// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html
	const most = 50
	ids := sorted(untagged)
	if len(ids) > most {
		hint += fmt.Sprintf(", for the first %d of %d and then doctor again", most, len(ids))
		ids = ids[:most]
	}
	return hint + ": aws ec2 create-tags --resources " + strings.Join(ids, " ") + " --tags Key=" + f.Options.ManagedTag +
		",Value="
}

// behind returns the instances that EC2 knows, by the names of their nodes.
func behind(f *Facts) map[string]Instance {
	byID, byName := map[string]Instance{}, map[string]Instance{}
	for _, i := range f.Instances.Value {
		byID[i.ID] = i
		byName[lookup.NodeName(i.PrivateDNSName, i.Tags, f.Options.ClusterName)] = i
	}
	found := map[string]Instance{}
	for _, n := range f.Nodes.Value {
		instance, known := byID[n.InstanceID]
		if n.InstanceID == "" {
			instance, known = byName[n.Name]
		}
		if known {
			found[n.Name] = instance
		}
	}
	return found
}

// hasReporter reports whether a pod on the node tells this handler what the metadata of the instance says.
func (f *Facts) hasReporter(n Node) bool {
	return slices.ContainsFunc(f.Pods.Value, func(p Pod) bool {
		return p.Node == n.Name && p.ReportsTo(f.Options.Namespace, f.Options.Lease)
	})
}

// ReportsTo reports whether the pod is ready, and tells the leader by a Lease what the metadata of its node's instance
// says.
func (p Pod) ReportsTo(namespace, lease string) bool {
	return p.Namespace == namespace && p.State.Ready &&
		p.Env["ENABLE_SQS_TERMINATION_DRAINING"] == "false" && p.Env["LEADER_ELECT_RESOURCE_NAME"] == lease
}

// uncovered says why notices would not find a node, in words and as a gap; covers if they would.
func uncovered(f *Facts, n Node, instances map[string]Instance) (string, gap) {
	instance, known := instances[n.Name]
	_, tagged := instance.Tags[f.Options.ManagedTag]
	unnamed, by := "no provider id", noInstance
	if n.ProviderID != "" {
		unnamed, by = "its provider id "+n.ProviderID+" is none of EC2", notEC2
	}
	switch {
	case f.Options.NoQueue && n.InstanceID == "":
		return unnamed + ", so only a pod on it drains it, without the leader, and not with report-only", by
	case f.Options.NoQueue && !f.hasReporter(n):
		return "no pod on it reads the metadata", noReporter
	case f.Options.NoQueue && n.Deaf:
		return "the pod on it gets no answer of the metadata", noMetadata
	case f.Options.NoQueue:
		return "", covers
	case n.InstanceID == "" && !known:
		return unnamed + ", and no instance has its name", by
	case !f.Options.CheckTag:
		return "", covers
	case !known:
		return "EC2 does not know " + n.InstanceID + " in " + f.Options.Region, noProviderMatch
	case !tagged:
		return "no tag " + f.Options.ManagedTag, noTag
	}
	return "", covers
}

// eventAccounts checks that the handler acts on notices of the nodes' instances. It ignores those
// of accounts that are not in event-accounts, and those of other regions than the queue's.
func eventAccounts(f *Facts) Finding {
	const subject = "whether notices of the nodes' instances are acted on"
	if f.Nodes.Err != nil {
		return unknown(subject, f.Nodes.Err)
	}
	accounts, instances := f.Options.EventAccounts, behind(f)
	var heard, unseen, strange, far []string // names of nodes
	var owners []string                      // of the instances
	for _, n := range f.Nodes.Value {
		instance, known := instances[n.Name]
		owner := cmp.Or(instance.Account, accounts[0]) // endpoints that are not AWS leave it out
		switch {
		case f.isElsewhere(n, known):
		case n.Region != "" && n.Region != f.Options.Region:
			far = append(far, n.Name+" ("+n.Region+")")
		case !known:
			unseen = append(unseen, n.Name)
		case !slices.Contains(accounts, owner):
			strange = append(strange, n.Name+" ("+owner+")")
			owners = append(owners, owner)
		default:
			heard = append(heard, n.Name)
			owners = append(owners, owner)
		}
	}
	status := failedIf(len(heard) == 0 && (len(strange) > 0 || len(unseen) == 0))
	caller := f.Caller.Value.Account
	switch {
	case len(strange) > 0:
		return bad(status, "set event-accounts="+strings.Join(slices.Compact(sorted(owners)), ","),
			"only notices of account %s are acted on, and the instances of these nodes are of others: %s", list(accounts),
			list(strange))
	case len(far) > 0:
		return bad(status, "run a second handler for the nodes of another region, with a queue there",
			"only notices of region %s are acted on, and these nodes are in others: %s", f.Options.Region, list(far))
	case len(unseen) == 0:
		return ok("notices of account %s and region %s are acted on", list(accounts), f.Options.Region)
	case f.Caller.Err == nil && !slices.Contains(accounts, caller):
		return warn("if the instances are in the caller's account set event-accounts="+caller,
			"only notices of account %s are acted on, the caller is of %s, and EC2 does not say whose the instances are",
			list(accounts), caller)
	case f.Instances.Err != nil:
		return unknown(subject, f.Instances.Err)
	case len(heard) == 0 || !f.Options.CheckTag: // with the tag check, the line nodes has those that EC2 does not know
		return warn("name the account of these instances in event-accounts",
			"EC2 does not know the instances of these nodes in the caller's account: %s; if they are of another, their notices "+
				"are ignored", list(unseen))
	}
	return ok("notices of account %s and region %s are acted on", list(accounts), f.Options.Region)
}

// isElsewhere reports whether the node is not of EC2: it has another provider id, and EC2 was asked and has no instance
// of its name. known: there is one.
func (f *Facts) isElsewhere(n Node, known bool) bool {
	return n.Fargate || !known && f.Instances.Err == nil && n.InstanceID == "" && n.ProviderID != ""
}

// unseenInstances returns the number of nodes whose instance EC2 does not describe, so that its
// group is not known.
func unseenInstances(f *Facts) int {
	instances, unseen := behind(f), 0
	for _, n := range f.Nodes.Value {
		_, known := instances[n.Name]
		if !known && !f.isElsewhere(n, known) {
			unseen++
		}
	}
	return unseen
}
