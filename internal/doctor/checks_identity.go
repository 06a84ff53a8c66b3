package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

func credentials(f *Facts) Finding {
	c, err := f.Caller.Value, f.Caller.Err
	answer, answered := errors.AsType[*APIError](err)
	switch {
	case err == nil:
		return ok("AWS is called as %s", c.ARN)
	case denied(err):
		return unknown("who calls AWS", err)
	case answered && strings.Contains(answer.Message, "valid region"):
		return fail("set aws-region to the region of the queue, or remove it: queue-url names the region",
			"region %s is not the region of the endpoint: %v", f.Options.Region, err)
	case answered && c.Source == "":
		return fail("check that the role exists, that its trust policy names the caller, and that its account knows the "+
			"cluster's issuer",
			"there are no credentials of AWS: %v", err)
	case answered && c.Unusable != nil:
		return fail("renew the credentials, and check that the clock is right",
			"AWS does not accept the credentials (from %s): %v", c.Source, err)
	case c.Unusable != nil:
		return fail("give the ServiceAccount a role, by EKS Pod Identity or by the annotation of IRSA, and restart the "+
			"pods; beside the cluster set AWS_PROFILE",
			"there are no credentials of AWS: %v", err)
	case c.Source != "" && c.Source != SourceIRSA: // only doctor asks STS then
		return unknown("who calls AWS", err)
	}
	return fail("allow the traffic to STS: a VPC without internet access needs an endpoint for it",
		"AWS does not say who calls it: %v",
		err)
}

func credentialsSource(f *Facts) Finding {
	c := f.Caller.Value
	switch {
	case f.Caller.Err != nil && c.Source == "":
		return unknown("where the credentials come from", blocked("credentials", f.Caller.Err))
	case f.Beside != nil:
		return ok("doctor's own credentials come from %s; it does not run as the handler", c.Source)
	case c.Shadowed:
		return warn("remove the annotation eks.amazonaws.com/role-arn from the ServiceAccount and restart the pods",
			"the credentials come from IRSA, and the EKS Pod Identity association of the ServiceAccount is not used")
	case c.Source == SourceInstance:
		return warn("give the ServiceAccount a role of its own",
			"the credentials are those of the node's role, which every pod on the node can use")
	case c.Source == SourceStatic:
		return warn("give the ServiceAccount a role: static keys never expire, and are easily copied",
			"the credentials are %s", SourceStatic)
	}
	return ok("the credentials come from %s", c.Source)
}

// account checks that the handler can look up the instances of its notices: EC2 and Auto Scaling
// answer for the account of its role only.
func account(f *Facts) Finding {
	if f.Caller.Err != nil {
		return unknown("whether instances are looked up where notices come from", blocked("credentials", f.Caller.Err))
	}
	own, accounts := f.Caller.Value.Account, f.Options.EventAccounts
	others := slices.DeleteFunc(slices.Clone(accounts), func(id string) bool { return id == own })
	switch {
	case len(others) == len(accounts) && f.Beside != nil:
		return unknown("whether instances are looked up where notices come from", f.Beside)
	case len(others) == len(accounts) && f.Options.CheckTag:
		return fail("check the account in queue-url; if the queue is rightly in another account than the instances, set "+
			"event-accounts="+own,
			"only notices of account %s are acted on, and the caller is of account %s, which has none of their instances: "+
				"every notice would be ignored", list(accounts), own)
	case len(others) == len(accounts):
		return warn("run the handler with a role of the instances' account, and name that account in event-accounts if it "+
			"is not the queue's",
			"the caller is of account %s, and notices of account %s are acted on: instances and hooks are looked up in the "+
				"first", own, list(accounts))
	case len(others) > 0 && f.Options.CheckTag:
		return warn("set check-tag-before-draining=false, or take them out of event-accounts",
			"the caller is of account %s and finds no instance of account %s: notices of these are left alone, because the "+
				"tag is not found", own, list(others))
	}
	return ok("the caller is of account %s, whose notices are acted on", own)
}

func permissions(f *Facts) Finding {
	const subject = "what the handler's role has permission for"
	if f.Beside != nil {
		v := unknown(subject, f.Beside)
		if h, known := f.handler(); known {
			v.Hint = "run doctor with that role"
			v.Commands = []string{"kubectl -n " + h.Namespace + " exec " + h.exec() + " -- /node-termination-handler doctor"}
		}
		return v
	}
	var missing, useful, unsure []string
	neededUnsure, unasked := false, error(nil)
	for _, p := range f.Permissions {
		_, notAsked := errors.AsType[*BlockedError](p.Err)
		switch {
		case p.Err == nil:
		case notAsked:
			unasked = p.Err
		case denied(p.Err) && p.Needed:
			missing = append(missing, p.String())
		case denied(p.Err):
			useful = append(useful, p.String())
		default:
			unsure = append(unsure, fmt.Sprintf("%s (%v)", p, p.Err))
			neededUnsure = neededUnsure || p.Needed
		}
	}
	hint := "add what is missing to the role's policy; deploy/iam/policy.json is all of it, with your names in the " +
		"place of those in capitals"
	if name := roleName(f.Caller.Value.ARN); name != "" {
		hint += ": aws iam put-role-policy --role-name " + name +
			" --policy-name node-termination-handler --policy-document file://policy.json"
	}
	switch {
	case len(missing) > 0:
		return fail(hint, "the role lacks %s", list(append(missing, useful...)))
	case len(unsure) > 0 && (neededUnsure || len(useful) == 0):
		return unclear("", "whether the role has %s", list(unsure))
	case len(useful) > 0 && unasked != nil:
		return bad(Unknown, hint, "the role lacks %s; of its other permissions some were %v", list(useful), unasked)
	case unasked != nil:
		return unknown(subject, unasked)
	case len(useful) > 0:
		return warn(hint, "the role lacks %s: the rest works", list(useful))
	case len(f.Permissions) == 0:
		return unclear("", "%s was not tried", subject)
	}
	return ok("the role has the %s that could be tried", overview.Count(len(f.Permissions), "permission"))
}

func queue(f *Facts) Finding {
	if f.Options.NoQueue {
		hooks := ", and hooks completed after drains, as sweep-interval would too"
		if f.Options.Sweep {
			hooks = ", and hooks completed without the delay of a sweep; doctor does not try the role for hooks"
		}
		return ok("there is none, as queue-url says: notices come from the pods on the nodes. A queue would add stops and "+
			"terminations by hand, notices of AWS Health, those of nodes whose pod is lost%s", hooks)
	}
	err := f.Queue.Err
	_, notAsked := errors.AsType[*BlockedError](err)
	switch {
	case err == nil:
		return ok("the queue is %s", f.Queue.Value.ARN)
	case notAsked:
		return unknown("the queue", err)
	case errors.Is(err, ErrAbsent):
		return fail("check queue-url and aws-region, or make the queue; these are there: aws sqs list-queues --region "+
			f.Options.Region, "there is no queue %s in account %s and region %s", f.Options.QueueName, f.Options.Account,
			f.Options.Region)
	case denied(err):
		v := unknown("the queue's attributes", err)
		v.Hint = "allow it: without it the handler leaves messages that it cannot read, and cannot find a wrong attribute"
		return v
	}
	return fail("see that SQS can be reached from here: a VPC without internet needs an endpoint for SQS; check "+
		"aws-endpoint where it is set", "the queue does not answer: %v", err)
}
