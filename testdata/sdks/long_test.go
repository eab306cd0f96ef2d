package sdks

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/bwmarrin/discordgo"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/retry"
)

func message(ctx context.Context, s *server, client *http.Client) error {
	c := anthropic.NewClient(anthropicoption.WithAPIKey("key"), anthropicoption.WithBaseURL(s.URL), anthropicoption.WithHTTPClient(client))
	_, err := c.Messages.New(ctx, anthropic.MessageNewParams{
		Model: "claude", MaxTokens: 1, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hello"))},
	})
	return err
}

func member(ctx context.Context, _ *server, client *http.Client) error {
	session, err := discordgo.New("Bot token")
	if err == nil {
		session.Client = client
		_, err = session.User("1", discordgo.WithContext(ctx))
	}
	return err
}

// asking refuses every request, in no time, and asks for a wait of so many seconds.
type asking struct {
	server
	seconds int
}

func (a *asking) RoundTrip(req *http.Request) (*http.Response, error) {
	a.attempts.Add(1)
	if req.Body != nil {
		_ = req.Body.Close()
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	seconds := strconv.Itoa(a.seconds)
	body := `{"__type": "ThrottlingException", "message": "no", "error": {"code": "rate_limit", "message": "no"}, "retry_after": ` + seconds + `}`
	return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {seconds}, "Content-Type": {"application/json"}},
		ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}, nil
}

// What SDKs with their own retries make of a 429 that asks for a long wait, in fake time: alone; above a retry client,
// which does not wait for more than 30 s; and above a transport whose bucket is held for longer than the context.
func TestSDKs_LongRetryAfter(t *testing.T) {
	type outcome struct {
		attempts int
		took     time.Duration // less than 5 s more
	}
	none := outcome{1, 0}
	for name, c := range map[string]struct {
		send         func(context.Context, *server, *http.Client) error
		alone        map[int]outcome // by seconds
		above        outcome
		held         time.Duration
		byTheContext bool // what ends it where the bucket is held
	}{
		"anthropic": {send: message, above: none, alone: map[int]outcome{60: {3, 2 * time.Minute}, 3600: {3, 2 * time.Hour}}},
		"openai": {above: none, alone: map[int]outcome{60: {3, 2 * time.Minute}, 120: {3, 4 * time.Minute}, 121: none},
			send: func(ctx context.Context, s *server, client *http.Client) error { return chat(ctx, s, client) }},
		"discordgo": {send: member, alone: map[int]outcome{60: {212, 211 * time.Minute}, 3600: {5, 4 * time.Hour}},
			above: outcome{15, 4*time.Hour + 13*time.Minute + 10*time.Second}, held: time.Hour, byTheContext: true},
		"aws": {alone: map[int]outcome{60: {3, 0}, 3600: {3, 0}}, above: none,
			send: func(ctx context.Context, s *server, client *http.Client) error {
				return post(ctx, s, client, awsretry.NewStandard())
			}},
		"github": {send: user, alone: map[int]outcome{60: none, 3600: none}, above: none},
		"stripe": {alone: map[int]outcome{60: none, 3600: none}, above: none,
			send: func(ctx context.Context, s *server, client *http.Client) error {
				return charge(ctx, s, client, stripe.DefaultMaxNetworkRetries)
			}},
	} {
		try := func(t *testing.T, seconds int, timeout time.Duration, want outcome, client func(http.RoundTripper) *http.Client) (err error) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				api := &asking{server{Server: &httptest.Server{URL: "http://api.example.com"}}, seconds}
				begin := time.Now()
				err = c.send(ctx, &api.server, client(api))
				took := time.Since(begin)
				require.Error(t, err)
				require.Equal(t, want.attempts, api.made(), "attempts of %s at Retry-After: %d, in %v: %v", name, seconds, took, err)
				require.InDelta(t, want.took+5*time.Second/2, took, float64(5*time.Second/2), "%s at Retry-After: %d", name, seconds)
			})
			return err
		}
		for seconds, want := range c.alone {
			try(t, seconds, 210*time.Minute+time.Second*30, want, func(base http.RoundTripper) *http.Client { return &http.Client{Transport: base} })
		}
		try(t, 60, 210*time.Minute+time.Second*30, c.above, func(base http.RoundTripper) *http.Client {
			bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1000)))
			return retry.Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{
				Base: base, Limiter: queue.New(bucket, queue.Config{}), OnRefusal: transport.TooManyRequests,
			}).StandardClient()
		})
		err := try(t, 1, 10*time.Minute, outcome{0, c.held}, func(base http.RoundTripper) *http.Client {
			bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1)))
			require.NoError(t, bucket.Hold(t.Context(), time.Hour))
			return &http.Client{Transport: &transport.Transport{Base: base, Limiter: bucket, OnRefusal: transport.TooManyRequests}}
		})
		if c.byTheContext {
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
		} else {
			require.ErrorContains(t, err, "429", name)
		}
	}
}
