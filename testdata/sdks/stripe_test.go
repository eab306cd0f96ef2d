package sdks

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/dripfeed/dripfeed/transport/retry"
)

func charge(ctx context.Context, s *server, client *http.Client, retries int64) error {
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		HTTPClient: client, URL: &s.URL, LeveledLogger: &stripe.LeveledLogger{}, MaxNetworkRetries: &retries,
	})
	backends.API.(*stripe.BackendImplementation).SetNetworkRetriesSleep(false)
	_, err := stripe.NewClient("key", stripe.WithBackends(backends)).V1Customers.Create(ctx, &stripe.CustomerCreateParams{})
	return err
}

// stripe-go tries again only after locks and errors, and then sends the same Idempotency-Key.
func TestStripe_AttemptsAreTheLargerOfBoth(t *testing.T) {
	for _, c := range []struct {
		code    stripe.ErrorCode
		client  *http.Client
		retries int64
		want    int
	}{
		{stripe.ErrorCodeRateLimit, http.DefaultClient, stripe.DefaultMaxNetworkRetries, 1},
		{stripe.ErrorCodeRateLimit, paced(t), stripe.DefaultMaxNetworkRetries, 5},
		{stripe.ErrorCodeLockTimeout, http.DefaultClient, stripe.DefaultMaxNetworkRetries, 3},
		{stripe.ErrorCodeLockTimeout, paced(t), 0, 5},
	} {
		s := answer(t, 429, fmt.Sprintf(`{"error": {"type": "invalid_request_error", "code": %q, "message": "no"}}`, c.code), "Retry-After", "0.01")
		var refused *stripe.Error
		require.ErrorAs(t, charge(t.Context(), s, c.client, c.retries), &refused)
		require.Equal(t, 429, refused.HTTPStatusCode)
		require.Equal(t, c.code, refused.Code)
		require.Equal(t, c.want, s.made(), c.code)
	}

	s := answer(t, 429, `{"error": {"type": "invalid_request_error", "code": "lock_timeout", "message": "no"}}`, "Retry-After", "0.01")
	for _, timeout := range []time.Duration{0, time.Minute} {
		client := paced(t)
		client.Timeout = timeout
		err := charge(t.Context(), s, client, stripe.DefaultMaxNetworkRetries)
		var over *retry.Error
		require.ErrorAs(t, err, &over)
		require.ErrorContains(t, err, "status 429")
		require.Equal(t, 5, s.made())
	}
}
