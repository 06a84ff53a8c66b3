package awssim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	kmstypes "github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func (w *world) events() *eventbridge.Client {
	config := w.server.Config()
	config.RetryMaxAttempts = 1
	return eventbridge.NewFromConfig(config)
}

// put puts an event of one's own on the bus and returns what became of it.
func (w *world) put(source, detail string) types.PutEventsResultEntry {
	w.Helper()
	output, err := w.events().PutEvents(w.ctx, &eventbridge.PutEventsInput{Entries: []types.PutEventsRequestEntry{{
		Source: aws.String(source), DetailType: aws.String("A Test"), Detail: aws.String(detail), Time: aws.Time(w.start.Add(-time.Minute)),
	}}})
	w.ok(err)
	return output.Entries[0]
}

func TestPutEventsSendsWhatThePatternsTakeToTheQueue(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.PutRule(awssim.Rule{Name: "tests", Pattern: `{"source": ["mine"], "detail": {"a": ["b"]}}`, Queue: "q"}))
		w.ok(w.server.PutRule(awssim.Rule{Name: "off", Queue: "q", Disabled: true}))
		w.put("yours", `{"a": "b"}`)
		w.put("mine", `{"a": "c"}`)
		w.receiveNone()
		put := w.put("mine", `{"a": "b"}`)
		wantJSON(t, *w.receiveOne(0).Body, fmt.Sprintf(`{
			"version": "0", "id": %q, "detail-type": "A Test", "source": "mine", "account": "123456789012",
			"time": %q, "region": "us-east-1", "resources": [], "detail": {"a": "b"}}`,
			*put.EventId, w.start.Add(-time.Minute).UTC().Format(time.RFC3339)))
	})
}

func TestPutEventsRefusesSourcesOfAWSAndWhatIsNoObject(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q"}))
		for _, tt := range []struct{ source, detail, want string }{
			{"aws.ec2", `{}`, "NotAuthorizedForSourceException"},
			{"mine", `[]`, "MalformedDetail"},
			{"mine", `{`, "MalformedDetail"},
		} {
			if got := w.put(tt.source, tt.detail); aws.ToString(got.ErrorCode) != tt.want || got.EventId != nil {
				t.Errorf("%s %s: code %q, want %s", tt.source, tt.detail, aws.ToString(got.ErrorCode), tt.want)
			}
		}
		w.receiveNone()
	})
}

func TestRulesAreFoundByTheirTarget(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		const pattern = `{"source": ["aws.ec2"]}`
		w.ok(w.server.PutRule(awssim.Rule{Name: "b", Pattern: pattern, Queue: "q", Disabled: true, DeadLetters: "dead"}))
		w.ok(w.server.PutRule(awssim.Rule{Name: "a", DetailType: "EC2 *", Queue: "q"}))
		w.ok(w.server.PutRule(awssim.Rule{Name: "c", Queue: "other"}))
		names, err := w.events().ListRuleNamesByTarget(w.ctx, &eventbridge.ListRuleNamesByTargetInput{TargetArn: aws.String(w.server.QueueARN("q"))})
		w.ok(err)
		if diff := cmp.Diff([]string{"a", "b"}, names.RuleNames); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		rule, err := w.events().DescribeRule(w.ctx, &eventbridge.DescribeRuleInput{Name: aws.String("b")})
		w.ok(err)
		if *rule.EventPattern != pattern || rule.State != types.RuleStateDisabled || *rule.Arn != w.server.RuleARN("b") {
			t.Errorf("rule b is %s, %s, %s", *rule.EventPattern, rule.State, *rule.Arn)
		}
		targets, err := w.events().ListTargetsByRule(w.ctx, &eventbridge.ListTargetsByRuleInput{Rule: aws.String("b")})
		w.ok(err)
		if len(targets.Targets) != 1 || *targets.Targets[0].Arn != w.server.QueueARN("q") || *targets.Targets[0].DeadLetterConfig.Arn != w.server.QueueARN("dead") {
			t.Errorf("targets of b: %+v", targets.Targets)
		}
		_, err = w.events().DescribeRule(w.ctx, &eventbridge.DescribeRuleInput{Name: aws.String("d")})
		wantError(t, err, "ResourceNotFoundException", 400)
	})
}

func TestPoliciesDecideWhetherEventBridgeMayDeliver(t *testing.T) {
	allow := func(who, action, resource, source string) string {
		return fmt.Sprintf(`{"Statement": [{"Effect": "Allow", "Principal": {"Service": %q}, "Action": %q, "Resource": %q, "Condition": {"ArnLike": {"aws:SourceArn": %q}}}]}`,
			who, action, resource, source)
	}
	const rule = "arn:aws:events:us-east-1:123456789012:rule/all"
	open := allow("events.amazonaws.com", "sqs:SendMessage", "*", rule)
	key := allow("events.amazonaws.com", "kms:*", "*", "*")
	for name, tt := range map[string]struct {
		policy, key string
		keys        awssim.Key
		want        int
	}{
		"no policy":                             {"", "", awssim.Key{}, 0},
		"one for the rule":                      {open, "", awssim.Key{}, 1},
		"one for another rule":                  {allow("events.amazonaws.com", "sqs:SendMessage", "*", rule+"2"), "", awssim.Key{}, 0},
		"one for SNS":                           {allow("sns.amazonaws.com", "sqs:SendMessage", "*", "*"), "", awssim.Key{}, 0},
		"the key that AWS manages":              {open, "alias/aws/sqs", awssim.Key{}, 0},
		"a key that EventBridge may use":        {open, "k-1", awssim.Key{Policy: key}, 1},
		"a key that it may not":                 {open, "k-1", awssim.Key{Policy: allow("sns.amazonaws.com", "kms:*", "*", "*")}, 0},
		"a key that is disabled, by its alias":  {open, "alias/q", awssim.Key{Policy: key, State: "Disabled", Alias: "alias/q"}, 0},
		"a key that is not there":               {open, "k-2", awssim.Key{Policy: key}, 0},
		"a key that it may use, by its own ARN": {open, "arn:aws:kms:us-east-1:123456789012:key/k-1", awssim.Key{Policy: key}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			attributes := map[string]string{"Policy": tt.policy, "KmsMasterKeyId": tt.key}
			inBubble(t, awssim.Options{EnforcePolicies: true}, awssim.Queue{Attributes: attributes}, func(w *world) {
				tt.keys.ID = "k-1"
				w.ok(w.server.PutKey(tt.keys))
				w.ok(w.server.CreateQueue(awssim.Queue{Name: "dead", Attributes: map[string]string{"Policy": open}}))
				w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q", DeadLetters: "dead"}))
				w.put("mine", `{}`)
				if got := len(w.server.Messages("q")); got != tt.want {
					t.Errorf("%d messages in the queue, want %d", got, tt.want)
				}
				if got := len(w.server.Messages("dead")); got != 1-tt.want {
					t.Errorf("%d messages in the dead-letter queue of the target, want %d", got, 1-tt.want)
				}
			})
		})
	}
}

func TestKeysAreDescribed(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.PutKey(awssim.Key{ID: "k-1", Alias: "alias/q", State: "PendingDeletion", Policy: "a policy"}))
		client := kms.NewFromConfig(w.server.Config())
		key, err := client.DescribeKey(w.ctx, &kms.DescribeKeyInput{KeyId: aws.String("alias/q")})
		w.ok(err)
		if m := key.KeyMetadata; *m.KeyId != "k-1" || m.KeyState != "PendingDeletion" || m.KeyManager != "CUSTOMER" {
			t.Errorf("key: %+v", m)
		}
		text, err := client.GetKeyPolicy(w.ctx, &kms.GetKeyPolicyInput{KeyId: aws.String("k-1")})
		w.ok(err)
		if *text.Policy != "a policy" {
			t.Errorf("policy %q", *text.Policy)
		}
		_, err = client.DescribeKey(w.ctx, &kms.DescribeKeyInput{KeyId: aws.String("k-2")})
		wantError(t, err, "NotFoundException", 400)
	})
}

func TestADryRunOfADecryptionNeedsNoCiphertext(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.PutKey(awssim.Key{ID: "k-1", Alias: "alias/q"}))
		w.ok(w.server.PutKey(awssim.Key{ID: "k-2", State: "Disabled"}))
		config := w.server.Config()
		config.RetryMaxAttempts = 1
		client := kms.NewFromConfig(config)
		try := func(id, code string, status int) {
			t.Helper()
			_, err := client.Decrypt(w.ctx, &kms.DecryptInput{
				KeyId: aws.String(id), DryRun: aws.Bool(true), DryRunModifiers: []kmstypes.DryRunModifierType{kmstypes.DryRunModifierTypeIgnoreCiphertext},
			})
			wantError(t, err, code, status)
		}
		try("alias/q", "DryRunOperationException", 400)
		try("k-2", "DisabledException", 400)
		try("k-3", "NotFoundException", 400)
		_, err := client.Decrypt(w.ctx, &kms.DecryptInput{KeyId: aws.String("k-1"), CiphertextBlob: []byte("text")})
		wantError(t, err, "InvalidCiphertextException", 400)

		credentials, err := config.Credentials.Retrieve(w.ctx)
		w.ok(err)
		w.ok(w.server.PutRole(awssim.Role{Name: "reader", AccessKeyID: credentials.AccessKeyID, Policy: `{"Statement": {"Effect": "Allow", "Action": "kms:Describe*", "Resource": "*"}}`}))
		try("alias/q", "AccessDeniedException", 403)
	})
}
