package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
)

func (a *AWS) caller(ctx context.Context) (Caller, error) {
	var c Caller
	given, err := a.Credentials.Retrieve(ctx)
	if err != nil {
		err = fmt.Errorf("find credentials: %w", plain(ctx, err))
		c.Unusable = blocked("credentials", err)
		return c, err
	}
	c.Source = sourceOf(given.Source)
	// The SDK looks for IRSA first.
	c.Shadowed = c.Source == SourceIRSA && os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != ""
	out, err := sts.NewFromConfig(a.Config).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	switch {
	case unaccepted(err):
		err = plain(ctx, err)
		c.Unusable = blocked("credentials", err)
		return c, err
	case err != nil:
		return c, explain(ctx, "sts:GetCallerIdentity", err)
	}
	c.ARN, c.Account = aws.ToString(out.Arn), aws.ToString(out.Account)
	return c, nil
}

// unaccepted reports whether AWS rejects the credentials themselves.
// https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
func unaccepted(err error) bool {
	return slices.Contains([]string{
		"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "ExpiredToken", "ExpiredTokenException",
		"SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure", "RequestExpired", "IncompleteSignature",
		"MissingAuthenticationToken",
	}, awserr.Code(err))
}

// sourceOf translates the SDK's names of credential sources.
func sourceOf(provider string) Source {
	for prefix, source := range map[string]Source{
		"WebIdentityCredentials": SourceIRSA, "CredentialsEndpointProvider": SourcePodIdentity,
		"EC2RoleProvider": SourceInstance, "EnvConfigCredentials": SourceStatic,
	} {
		if strings.HasPrefix(provider, prefix) {
			return source
		}
	}
	return Source(provider)
}
