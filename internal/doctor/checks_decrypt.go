package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// queueDecrypt checks that the handler's role can read messages that a key of KMS encrypts. SQS
// asks KMS with the role's permissions, and only when there is a message to receive.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-key-management.html
var queueDecrypt = ofQueue(canDecrypt, func(f *Facts, q Queue) verdict {
	switch {
	case q.KeyID == "":
		return ok("messages are read without a key of KMS")
	case strings.HasSuffix(q.KeyID, "alias/aws/sqs"), f.Key.Err == nil && f.Key.Value.AWSManaged:
		return ok("the key that AWS manages lets every reader of the queue decrypt")
	case errors.Is(f.Key.Err, ErrAbsent):
		return unknown(canDecrypt, blocked("queue-key", ErrAbsent))
	case f.Key.Err == nil && f.Key.Value.State != "Enabled":
		return unknown(canDecrypt, blocked("queue-key", errors.New("the key is in the state "+f.Key.Value.State)))
	case f.Role.Simulated:
		return ofPolicies(f)
	case f.Role.Err != nil:
		return unknown(canDecrypt, f.Role.Err)
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

// ofPolicies is the verdict if IAM said what the policies of the role allow, which it does without
// the policy of the key. For them to have an effect on the key, that policy has to name the role or
// its account.
// https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-default.html
func ofPolicies(f *Facts) verdict {
	if err := errors.Join(f.Key.Err, f.Decrypt.Err, f.Key.Value.Policy.Err); err != nil {
		return unknown(canDecrypt, err)
	}
	k := f.Key.Value
	byRole, byAccount, err := admits(k.Policy.Value, f.Role.ARN)
	switch {
	case err != nil:
		return unknown(canDecrypt, err)
	case f.Decrypt.Value && (byRole || byAccount):
		return ok("the handler's role can decrypt messages with the queue's key")
	case f.Decrypt.Value:
		return fail("add the statement "+jsonText(map[string]any{
			"Effect": "Allow", "Principal": map[string]string{"AWS": f.Role.ARN}, "Action": decrypt, "Resource": "*",
		})+" to the key's policy",
			"the policy of the queue's key %s names neither the handler's role nor its account: no message can be read", k.ARN)
	case byRole:
		return unclear("read the key's policy", "the policies of the handler's role do not allow kms:Decrypt on the queue's "+
			"key; the key's policy names the role, and whether it allows that is not read here")
	}
	return fail("aws iam put-role-policy --role-name "+roleName(f.Role.ARN)+" --policy-name decrypt --policy-document '"+
		jsonText(map[string]any{"Version": "2012-10-17", "Statement": []any{
			map[string]any{"Effect": "Allow", "Action": decrypt, "Resource": k.ARN},
		}})+"'", "the handler's role %s lacks kms:Decrypt on the queue's key: no message can be read", f.Role.ARN)
}

// admits reports whether a statement of a key's policy allows anything to the role by its name, and
// whether one does to the role's account, which leaves it to the policies of its roles. Everybody is
// both.
func admits(policy, role string) (byRole, byAccount bool, err error) {
	var document struct {
		Statement json.RawMessage
	}
	var statements []struct {
		Effect    string
		Principal json.RawMessage
	}
	if err := json.Unmarshal([]byte(policy), &document); err != nil {
		return false, false, fmt.Errorf("read the policy of the key: %w", err)
	}
	if err := json.Unmarshal(listed(document.Statement), &statements); err != nil {
		return false, false, fmt.Errorf("read the policy of the key: %w", err)
	}
	before, _, _ := strings.Cut(role, ":role/")
	for _, s := range statements {
		var everybody string
		var by struct{ AWS json.RawMessage }
		var who []string
		switch {
		case s.Effect != "Allow":
			continue
		case json.Unmarshal(s.Principal, &everybody) == nil:
			who = []string{everybody}
		case json.Unmarshal(s.Principal, &by) != nil, json.Unmarshal(listed(by.AWS), &who) != nil:
			continue // a service alone
		}
		everyone := slices.Contains(who, "*")
		byRole = byRole || everyone || slices.Contains(who, role)
		byAccount = byAccount || everyone || slices.Contains(who, accountOf(role)) || slices.Contains(who, before+":root")
	}
	return byRole, byAccount, nil
}

// listed is JSON as a list: policies may write a list of one as its element.
func listed(value json.RawMessage) json.RawMessage {
	if text := strings.TrimSpace(string(value)); text != "" && !strings.HasPrefix(text, "[") {
		return json.RawMessage("[" + text + "]")
	}
	return value
}
