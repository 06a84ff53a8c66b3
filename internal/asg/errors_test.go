package asg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
)

// meaning is what this package reads out of an error.
type meaning struct{ Gone, Invalid, Denied bool }

func TestAnswersOfAutoScalingAreUnderstood(t *testing.T) {
	group, other := aws.String("workers"), (*string)(nil)
	for _, tc := range []struct {
		name    string
		group   *string
		status  int
		code    string
		message string
		want    meaning
	}{
		{"completed by its token", group, 400, "ValidationError", "No active Lifecycle Action found with token f66c3d47-e602-4af0-8edd-d4e4d2fe4620", meaning{Gone: true, Invalid: true}},
		{"completed by its instance", group, 400, "ValidationError", "No active Lifecycle Action found with instance ID i-09c7205a117f0d09a", meaning{Gone: true, Invalid: true}},
		{"hook deleted", group, 400, "ValidationError", "No Lifecycle Hook found with name drain", meaning{Gone: true, Invalid: true}},
		{"group deleted", group, 400, "ValidationError", "AutoScalingGroup name not found - AutoScalingGroup workers not found", meaning{Gone: true, Invalid: true}},
		{"another validation error", group, 400, "ValidationError", "1 validation error detected: Value at 'lifecycleActionToken' failed to satisfy constraint: Member must have length equal to 36", meaning{Invalid: true}},
		{"the same text with another code", group, 400, "InternalFailure", "No active Lifecycle Action found with token x", meaning{}},
		{"refused before it was sent", other, 0, "", "", meaning{Invalid: true}},
		{"no permission", group, 403, "AccessDenied", "User: arn:aws:sts::123456789012:assumed-role/nth is not authorized to perform: autoscaling:CompleteLifecycleAction", meaning{Denied: true}},
		{"expired credentials", group, 403, "ExpiredToken", "The security token included in the request is expired", meaning{}},
		{"throttled", group, 400, "Throttling", "Rate exceeded", meaning{}},
		{"busy", group, 500, "ResourceContention", "You already have a pending update to an Amazon EC2 Auto Scaling resource.", meaning{}},
		{"down", group, 503, "ServiceUnavailable", "", meaning{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := fmt.Sprintf(`<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">`+
				`<Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error>`+
				`<RequestId>7c6e177f-f082-11e1-ac58-3714bEXAMPLE</RequestId></ErrorResponse>`, tc.code, tc.message)
			client := autoscaling.New(autoscaling.Options{
				Region:           "eu-central-1",
				Credentials:      aws.CredentialsProviderFunc(someCredentials),
				RetryMaxAttempts: 1,
				HTTPClient: roundTrip(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: tc.status, Body: io.NopCloser(strings.NewReader(answer)), Request: r}, nil
				}),
			})
			_, err := client.CompleteLifecycleAction(t.Context(), &autoscaling.CompleteLifecycleActionInput{
				AutoScalingGroupName: tc.group, LifecycleHookName: aws.String("drain"), LifecycleActionResult: aws.String("CONTINUE"),
			})
			if diff := cmp.Diff(tc.want, understood(err)); diff != "" {
				t.Errorf("understood of %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestADenialOfAnotherServiceIsNotOurs(t *testing.T) {
	sts := &smithy.OperationError{
		ServiceID: "STS", OperationName: "AssumeRoleWithWebIdentity",
		Err: &smithy.GenericAPIError{Code: "AccessDenied", Message: "Not authorized to perform sts:AssumeRoleWithWebIdentity"},
	}
	client := autoscaling.New(autoscaling.Options{
		Region: "eu-central-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, sts
		}),
		RetryMaxAttempts: 1,
	})
	_, err := client.DescribeLifecycleHooks(t.Context(), &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String("workers")})
	if !errors.Is(err, sts) {
		t.Fatalf("err = %v, want it to wrap that of STS", err)
	}
	if diff := cmp.Diff(meaning{}, understood(err)); diff != "" {
		t.Errorf("understood of %v (-want +got):\n%s", err, diff)
	}
}

func understood(err error) meaning {
	return meaning{Gone: isGone(err), Invalid: isInvalid(err), Denied: awserr.Denied(err)}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) Do(r *http.Request) (*http.Response, error) { return f(r) }

func someCredentials(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIAEXAMPLE", SecretAccessKey: "secret"}, nil
}
