package doctor

import (
	"errors"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

const useSSE = "use SSE-SQS (SqsManagedSseEnabled), or a key of your own whose policy lets events.amazonaws.com use " +
	"kms:GenerateDataKey and kms:Decrypt"

var queueKey = ofQueue("the queue's key", func(f *Facts, q Queue) Finding {
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

// queueDecrypt checks that the handler's role can read messages that a key of KMS encrypts. SQS
// asks KMS with the role's permissions, and only when there is a message to receive.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
var queueDecrypt = ofQueue(canDecrypt, func(f *Facts, q Queue) Finding {
	switch {
	case q.KeyID == "":
		return ok("messages are read without a key of KMS")
	case strings.HasSuffix(q.KeyID, "alias/aws/sqs"), f.Key.Err == nil && f.Key.Value.AWSManaged:
		return ok("the key that AWS manages lets every reader of the queue decrypt")
	case errors.Is(f.Key.Err, ErrAbsent):
		return unknown(canDecrypt, blocked("queue-key", ErrAbsent))
	case f.Key.Err == nil && f.Key.Value.State != "Enabled":
		return unknown(canDecrypt, blocked("queue-key", errors.New("the key is in the state "+f.Key.Value.State)))
	case f.Beside != nil:
		return unknown(canDecrypt, f.Beside)
	case f.Decrypt.Err != nil:
		return unknown(canDecrypt, f.Decrypt.Err)
	case !f.Decrypt.Value:
		// A policy may let the role use the key by way of SQS alone, and doctor asks KMS itself.
		return unclear("give the role kms:Decrypt on the queue's key; accept this line only if a policy gives it on the "+
			"condition that kms:ViaService is SQS", "KMS refuses kms:Decrypt on the queue's key %s to the role: no message "+
			"can be read, unless a policy allows it by way of SQS alone", q.KeyID)
	}
	return ok("the role can decrypt messages with the queue's key")
})

const canDecrypt = "whether the handler's role can decrypt messages"
