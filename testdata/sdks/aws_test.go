package sdks

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sso"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"
)

const awsRefusal = `{"__type": "com.amazonaws.sqs#ThrottlingException", "message": "Rate exceeded"}`

var keys = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
})

// post sends a request whose body can be read only once, as the SDK makes them.
func post(ctx context.Context, s *server, client *http.Client, retryer aws.Retryer) error {
	c := sqs.New(sqs.Options{BaseEndpoint: &s.URL, Region: "eu-central-1", HTTPClient: client, Credentials: keys, Retryer: retryer})
	_, err := c.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &s.URL, MessageBody: aws.String("hello")})
	return err
}

// get sends a request without a body.
func get(ctx context.Context, s *server, client *http.Client, retryer aws.Retryer) error {
	c := sso.New(sso.Options{BaseEndpoint: &s.URL, Region: "eu-central-1", HTTPClient: client, Retryer: retryer})
	_, err := c.ListAccounts(ctx, &sso.ListAccountsInput{AccessToken: aws.String("token")})
	return err
}

// The SDK and the client below it make no more attempts than the larger of both.
func TestAWS_AttemptsAreTheLargerOfBoth(t *testing.T) {
	s := answer(t, 429, awsRefusal, "Retry-After", "0.01")
	standard := awsretry.AddWithMaxBackoffDelay(awsretry.NewStandard(), time.Millisecond)
	for name, c := range map[string]struct {
		client  *http.Client
		retryer aws.Retryer
		want    int
	}{
		"alone":                    {http.DefaultClient, standard, 3},
		"above":                    {paced(t), standard, 3},
		"above, with 13 attempts":  {paced(t), awsretry.AddWithMaxAttempts(standard, 13), 13},
		"above, without retries":   {paced(t), aws.NopRetryer{}, 5},
		"above, with a single try": {paced(t), awsretry.AddWithMaxAttempts(standard, 1), 5},
	} {
		for _, send := range []func(context.Context, *server, *http.Client, aws.Retryer) error{post, get} {
			var refused smithy.APIError
			require.ErrorAs(t, send(t.Context(), s, c.client, c.retryer), &refused, name)
			require.Equal(t, "ThrottlingException", refused.ErrorCode(), name)
			require.Equal(t, c.want, s.made(), name)
		}
	}
}

// With MaxAttempts 0 only the SDK's own token bucket, here of 4 retries, ends its attempts.
func TestAWS_UnboundedAttemptsDoNotMultiply(t *testing.T) {
	s := answer(t, 429, awsRefusal, "Retry-After", "0.01")
	for _, send := range []func(context.Context, *server, *http.Client, aws.Retryer) error{post, get} {
		standard := awsretry.NewStandard(func(o *awsretry.StandardOptions) {
			o.RateLimiter, o.ThrottlingRetryCost = ratelimit.NewTokenRateLimit(4), 1
		})
		unbounded := awsretry.AddWithMaxAttempts(awsretry.AddWithMaxBackoffDelay(standard, time.Millisecond), 0)
		require.Error(t, send(t.Context(), s, paced(t), unbounded))
		require.Equal(t, 5, s.made())
	}
}
