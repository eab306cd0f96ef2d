package sdks

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	"github.com/google/go-github/v93/github"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/retry"
)

// server gives all requests the same answer, and counts them.
type server struct {
	*httptest.Server
	attempts atomic.Int64
}

// answer returns a server that answers with this status, body and header.
func answer(t *testing.T, status int, body string, header ...string) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.attempts.Add(1)
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s
}

// made returns the number of attempts since its last call.
func (s *server) made() int { return int(s.attempts.Swap(0)) }

// paced returns a client that sends a request again up to 4 times, with holds and pauses of no more
// than 10 ms.
func paced(t *testing.T) *http.Client {
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1000)))
	client := retry.Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{
		Base: base, Limiter: queue.New(bucket, queue.Config{}), MaxHold: 10 * time.Millisecond,
	})
	client.RetryWaitMin, client.RetryWaitMax = time.Millisecond, time.Millisecond
	return client.StandardClient()
}

// full returns a client whose bucket is held for an hour, and which then replies with 429.
func full(t *testing.T) *http.Client {
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1)))
	require.NoError(t, bucket.Hold(t.Context(), time.Hour))
	return &http.Client{Transport: &transport.Transport{Limiter: bucket, OnRefusal: transport.TooManyRequests}}
}

// A refusal of the limiter is an error of the SDK that has the status and the limiter's text, and no
// request is sent.
func TestSDKs_ReadRefusalOfTheLimiter(t *testing.T) {
	s := answer(t, 200, `{}`)
	for name, sdk := range map[string]struct {
		send  func(*http.Client) error
		error any
	}{
		"aws, post": {func(c *http.Client) error { return post(t.Context(), s, c, awsretry.NewStandard()) }, new(smithy.APIError)},
		"aws, get":  {func(c *http.Client) error { return get(t.Context(), s, c, awsretry.NewStandard()) }, new(smithy.APIError)},
		"github":    {func(c *http.Client) error { return user(t.Context(), s, c) }, new(*github.ErrorResponse)},
		"openai": {func(c *http.Client) error {
			err := chat(t.Context(), s, c, option.WithMaxRetries(0))
			if refused, ok := errors.AsType[*openai.Error](err); ok {
				return fmt.Errorf("%w: %s", err, refused.Message)
			}
			return err
		}, new(*openai.Error)},
		"stripe": {func(c *http.Client) error { return charge(t.Context(), s, c, stripe.DefaultMaxNetworkRetries) }, new(*stripe.Error)},
	} {
		err := sdk.send(full(t))
		require.ErrorAs(t, err, sdk.error, name)
		require.ErrorContains(t, err, "429", name)
		require.ErrorContains(t, err, "retry in", name)
		require.Zero(t, s.made(), name)
	}
}
