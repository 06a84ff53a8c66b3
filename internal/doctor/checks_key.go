package doctor

import (
	"errors"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

const useSSE = "use SSE-SQS (SqsManagedSseEnabled), or a key of your own whose policy lets events.amazonaws.com use " +
	"kms:GenerateDataKey and kms:Decrypt"

var queueKey = ofQueue("the queue's key", func(f *Facts, q Queue) verdict {
	if q.KeyID == "" {
		return ok("the queue is not encrypted with a key of KMS")
	}
	all, unseen := senders(f)
	switch fault, err := keyFault(f, q.KeyID, f.Key, all, unseen); {
	case err != nil:
		return unknown("whether "+describe(all)+" has permission to use the queue's key "+q.KeyID, err)
	case fault != "":
		fix := useSSE
		if len(ofKind(all, snsService)) > 0 {
			fix = strings.Replace(useSSE, eventBridge, snsService, 1)
		}
		return fail(fix+": "+setAttribute(f, `'{"KmsMasterKeyId":"","SqsManagedSseEnabled":"true"}'`),
			"the queue's key %s; %s drops what it cannot deliver", fault, describe(all))
	}
	return ok("%s has permission to use the queue's key", describe(all))
})

var errConditions = errors.New("its policy has conditions that are not read here")

// errDelegated is the error if the policies of a role decide, which doctor has no right to read.
var errDelegated = errors.New("its policy leaves that to the policies of the role, which are not read here")

// keyFault says why senders cannot use a key, such as "does not exist"; empty: they can. unseen
// says why there may be rules that are not among the senders.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
func keyFault(f *Facts, id string, key Answer[Key], all []sender, unseen error) (fault string, err error) {
	k := key.Value
	switch {
	case strings.HasSuffix(id, "alias/aws/sqs"), strings.HasSuffix(id, "alias/aws/sns"), key.Err == nil && k.AWSManaged:
		return id + " is one that AWS manages, which " + describe(all) + " cannot use", nil
	case errors.Is(key.Err, ErrAbsent):
		return id + " does not exist", nil
	case key.Err != nil:
		return "", key.Err
	case k.State != "Enabled":
		return id + " is in the state " + k.State, nil
	case k.Policy.Err != nil:
		return "", k.Policy.Err
	}
	p, err := iampolicy.Parse(k.Policy.Value)
	if err != nil {
		return "", err
	}
	worst := iampolicy.Allowed
	for _, s := range all {
		for _, action := range []string{"kms:GenerateDataKey", "kms:Decrypt"} {
			worst = min(worst, p.Evaluate(s.request(action, k.ARN)))
		}
	}
	switch worst {
	case iampolicy.Allowed:
		return "", nil
	case iampolicy.Unclear:
		if len(ofKind(all, "")) > 0 {
			return "", errDelegated
		}
		return "", errConditions
	case iampolicy.Refused, iampolicy.Denied:
		if unseen != nil && (p.Names(eventBridge) || hiddenRules(f) != nil) {
			return "", unseen
		}
	}
	return id + " has a policy that does not let " + describe(all) + " use it", nil
}
