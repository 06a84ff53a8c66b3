package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	kmstypes "github.com/aws/aws-sdk-go-v2/service/kms/types"
)

const decrypt = "kms:Decrypt"

// triedDecrypt asks KMS whether the caller can decrypt with a key. A dry run that ignores the
// ciphertext needs none, and has no effect.
// https://docs.aws.amazon.com/kms/latest/developerguide/testing-permissions.html
func (a *AWS) triedDecrypt(ctx context.Context, key string) Answer[bool] {
	there := func(o *kms.Options) { o.Region = regionOf(key, o.Region) }
	_, err := a.Decrypt(ctx, &kms.DecryptInput{
		KeyId: aws.String(key), DryRun: aws.Bool(true),
		DryRunModifiers: []kmstypes.DryRunModifierType{kmstypes.DryRunModifierTypeIgnoreCiphertext},
	}, there)
	if _, can := errors.AsType[*kmstypes.DryRunOperationException](err); can {
		return Answer[bool]{Value: true}
	}
	err = explain(ctx, decrypt, err)
	if denied(err) {
		return Answer[bool]{}
	}
	return Answer[bool]{Err: err}
}

// simulatedDecrypt asks IAM whether the policies of a role allow it to decrypt with a key, as SQS
// asks KMS for it. IAM does not look at the policy of the key.
// https://docs.aws.amazon.com/kms/latest/developerguide/conditions-kms.html
func (a *AWS) simulatedDecrypt(ctx context.Context, role string, key Answer[Key], o Options) Answer[bool] {
	if key.Err != nil || key.Value.ARN == "" {
		return Answer[bool]{Err: key.Err}
	}
	sqs := "sqs." + o.Region + ".amazonaws.com"
	if o.Partition == "aws-cn" {
		sqs += ".cn"
	}
	in := &iam.SimulatePrincipalPolicyInput{
		PolicySourceArn: aws.String(role), ResourceArns: []string{key.Value.ARN}, ActionNames: []string{decrypt},
	}
	for name, value := range map[string]string{
		"aws:RequestedRegion": o.Region, "kms:ViaService": sqs, "kms:CallerAccount": accountOf(role),
		"kms:EncryptionContext:aws:sqs:arn": o.queueARN(),
	} {
		in.ContextEntries = append(in.ContextEntries, iamtypes.ContextEntry{
			ContextKeyName: aws.String(name), ContextKeyType: iamtypes.ContextKeyTypeEnumString,
			ContextKeyValues: []string{value},
		})
	}
	out, err := a.SimulatePrincipalPolicy(ctx, in)
	if err != nil {
		return Answer[bool]{Err: explain(ctx, "iam:SimulatePrincipalPolicy", err)}
	}
	return Answer[bool]{Value: slices.ContainsFunc(out.EvaluationResults, func(r iamtypes.EvaluationResult) bool {
		return r.EvalDecision == iamtypes.PolicyEvaluationDecisionTypeAllowed
	})}
}

// accountOf is the account in an ARN; empty if it has none.
func accountOf(arn string) string {
	if parts := strings.Split(arn, ":"); len(parts) > 4 {
		return parts[4]
	}
	return ""
}
