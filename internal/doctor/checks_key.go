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
	arns, unseen := ruleARNs(f)
	switch fault, err := keyFault(f, q.KeyID, f.Key, arns, unseen); {
	case err != nil:
		return unknown("whether EventBridge has permission to use the queue's key "+q.KeyID, err)
	case fault != "":
		return fail(useSSE+": "+setAttribute(f, `'{"KmsMasterKeyId":"","SqsManagedSseEnabled":"true"}'`),
			"the queue's key %s; EventBridge drops what it cannot deliver", fault)
	}
	return ok("EventBridge has permission to use the queue's key")
})

var errConditions = errors.New("its policy has conditions that are not read here")

// keyFault says why rules cannot use a key, such as "does not exist"; empty: they can. unseen says
// why there may be rules that are not among the arns.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
func keyFault(f *Facts, id string, key Answer[Key], arns map[string]string, unseen error) (fault string, err error) {
	k := key.Value
	switch {
	case strings.HasSuffix(id, "alias/aws/sqs"), key.Err == nil && k.AWSManaged:
		return id + " is one that AWS manages, which EventBridge cannot use", nil
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
	for _, arn := range arns {
		for _, action := range []string{"kms:GenerateDataKey", "kms:Decrypt"} {
			worst = min(worst, p.Evaluate(request(f, action, k.ARN, arn)))
		}
	}
	switch worst {
	case iampolicy.Allowed:
		return "", nil
	case iampolicy.Unclear:
		return "", errConditions
	case iampolicy.Refused, iampolicy.Denied:
		if unseen != nil && (p.Names(eventBridge) || hiddenRules(f) != nil) {
			return "", unseen
		}
	}
	return id + " has a policy that does not let EventBridge use it", nil
}
