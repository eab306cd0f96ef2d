package retry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// The text has the method, the URL, the attempt and the cause.
func TestError_Text(t *testing.T) {
	cause := errors.New("connection reset")
	e := &Error{Method: "PUT", URL: "https://h/p", Attempts: 5, Err: cause}
	require.EqualError(t, e, "retry: PUT https://h/p: attempt 5: connection reset")
	e = &Error{Method: "PUT", URL: "https://h/p", Err: outbound.ErrThrottled}
	require.EqualError(t, e, "retry: PUT https://h/p: not sent: "+outbound.ErrThrottled.Error())
	e.Attempts, e.attempt = 2, &attempt{refused: e.Err}
	require.EqualError(t, e, "retry: PUT https://h/p: attempt 2: not sent: "+outbound.ErrThrottled.Error())
	e = &Error{Method: "PUT", URL: "https://h/p", Attempts: 5, Err: cause}
	require.Equal(t, cause, e.Unwrap())
	require.False(t, e.RetryableError())
	require.False(t, e.Timeout())
	require.True(t, (&Error{Err: context.DeadlineExceeded}).Timeout())
}

// What an error says, and what it does not.
func TestError_HidesSecretsAndNamesTheBucket(t *testing.T) {
	bubble(t, "No text has a part of the URL that may be secret", func(t *testing.T) {
		const secret = "https://user:secret@api.example.com/items?token=canary#canary"
		for name, rt := range map[string]*transport.Transport{
			"reset":          over(play(reset)),
			"limiter":        {Limiter: &refusing{errs: repeat(full(time.Hour), 99)}},
			"store":          {Limiter: &refusing{errs: repeat(&outbound.StoreError{Op: "book", Key: "api", Err: errors.New("down")}, 99)}},
			"never":          {Limiter: &refusing{errs: repeat(outbound.ErrTooLarge, 99)}},
			"no transport":   nil,
			"another scheme": over(&http.Transport{}),
		} {
			address := secret
			if name == "another scheme" {
				address = strings.Replace(secret, "https", "ftp", 1)
			}
			req := must(retryablehttp.NewRequestWithContext(within(t, time.Minute), http.MethodGet, address, nil))
			_, err := NewClient(rt).Do(req)
			text := ended(t, err).Error() + fmt.Sprintf("%v %+v %q", err, err, err) + ended(t, err).URL
			for _, canary := range []string{"canary", "secret", "user"} {
				require.NotContains(t, text, canary, name)
			}
			require.Contains(t, text, "api.example.com/items", name)
			if name == "reset" {
				require.Equal(t, reset.err, errors.Unwrap(err), "what an http.Client adds has the query")
			}
		}
		req := requestWith(t, http.MethodPut, "replayable")
		req.Header.Set("Idempotency-Key", "k")
		rt := NewClient(over(play(reset))).StandardClient().Transport
		for range 2 {
			_, err := rt.RoundTrip(req)
			require.NotContains(t, err.Error(), "canary")
		}
		_, err := rt.RoundTrip(req)
		require.ErrorIs(t, err, errAgain)
	})
	bubble(t, "The key of a refusal is that of the limiter's bucket, or its label", func(t *testing.T) {
		b := bucket(t, outbound.PerSecond(1))
		keyed := &outbound.Keyed[string]{
			New:   func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, outbound.PerSecond(1)) },
			Label: func(string) string { return "label" },
		}
		for name, c := range map[string]struct {
			limiter outbound.Limiter
			want    string
		}{
			"a bucket": {b, "api"}, "a queue": {queue.New(b, queue.Config{}), "api"}, "a label": {keyed.For("secret"), "label"},
			"observed": {outbound.Observe(b, "", func(context.Context, outbound.Event) {}), "api"},
		} {
			for kind, rt := range map[string]*transport.Transport{
				"Limiter": {Limiter: c.limiter},
				"For":     {For: func(*http.Request) outbound.Limiter { return c.limiter }},
			} {
				time.Sleep(2 * time.Hour) // the hold before is over
				rt.Base = play(status(429, "Retry-After", "60"))
				client := Config{MaxWait: time.Second}.NewClient(rt)
				answered(t, 429, client, "the API's refusal")
				_, err := get(t, client)
				require.Equal(t, c.want, throttled(t, err).Key, "%s, %s, the limiter's", name, kind)
			}
		}
	})
}
