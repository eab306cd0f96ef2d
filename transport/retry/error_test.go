package retry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

func TestErrorsSayWhatHappened(t *testing.T) {
	for want, e := range map[string]*Error{
		`retry: GET https://h/p: outbound: "h" is held, retry after 1m0s (status 429); attempts 3, throttled 2, failed 1`: {
			Method: "GET", URL: "https://h/p", Attempts: 3, Throttled: 2, Failures: 1, StatusCode: 429,
			Err: &outbound.ThrottledError{Key: "h", RetryAfter: time.Minute, Held: true},
		},
		`retry: PUT https://h/p: no answer that helps (status 503); attempts 5, throttled 0, failed 5`: {
			Method: "PUT", URL: "https://h/p", Attempts: 5, Failures: 5, StatusCode: 503,
		},
		`retry: PUT https://h/p: connection reset; attempts 5, throttled 0, failed 5`: {
			Method: "PUT", URL: "https://h/p", Attempts: 5, Failures: 5, Err: errors.New("connection reset"),
		},
	} {
		require.EqualError(t, e, want)
		require.Equal(t, e.Err, e.Unwrap())
		require.False(t, e.RetryableError())
	}
}

func TestNoErrorContainsACredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "https://user:secret@api.example.com/items?token=canary#canary"
		nested := base(func(req *http.Request) (*http.Response, error) { // some transports write errors so
			return nil, fmt.Errorf("cannot get token for %s: %w", req.URL, &url.Error{Op: "Get", URL: secret, Err: errors.New("refused")})
		})
		hour := &outbound.ThrottledError{Key: "api", RetryAfter: time.Hour}
		for name, tr := range map[string]*transport.Transport{
			"Base":           over(nested),
			"throttled":      over(play(status(429, "Retry-After", "3600"))),
			"failed":         over(play(status(500))),
			"reset":          over(play(reset)),
			"limiter":        {Limiter: &refusing{errs: repeat(hour, 99)}},
			"store":          {Limiter: &refusing{errs: repeat(&outbound.StoreError{Op: "book", Key: "api", Err: errors.New("down")}, 99)}},
			"never":          {Limiter: &refusing{errs: repeat(outbound.ErrTooLarge, 99)}},
			"bad location":   over(play(status(302, "Location", "https://user:secret@host:port/?canary"))),
			"bad path":       over(play(status(302, "Location", "/%zz?token=canary"))),
			"bad host":       over(play(status(302, "Location", "//user:secret@host:port/?canary"))),
			"bad quotes":     over(play(status(302, "Location", "https://user:secret@host/%zz?t=a'b<c>d\"e f=canary"))),
			"bad query":      over(play(status(302, "Location", "?token=\x7fcanary#canary"))),
			"redirects":      over(play(status(302, "Location", secret))),
			"no transport":   nil,
			"another scheme": over(&http.Transport{}),
		} {
			address := secret
			if name == "another scheme" {
				address = strings.Replace(secret, "https", "ftp", 1)
			}
			client := NewClient(tr)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
			require.NoError(t, err)
			_, err = client.Do(req)
			cancel()
			text := ended(t, err).Error() + fmt.Sprintf("%v %+v %q", err, err, err) + ended(t, err).URL
			for _, canary := range []string{"canary", "secret", "user"} {
				require.NotContains(t, text, canary, name)
			}
			require.Contains(t, text, "api.example.com/items", name)
			if name == "reset" {
				require.Equal(t, reset.err, errors.Unwrap(err), "what an http.Client adds has the query")
			}

			plain, err := http.NewRequest(http.MethodGet, address, nil)
			require.NoError(t, err)
			resp, err := (&RoundTripper{Client: client}).RoundTrip(plain)
			switch name {
			case "redirects", "throttled", "failed": // here the caller follows redirects, and gets the last response
				require.NoError(t, err, name)
				require.NoError(t, resp.Body.Close())
			default:
				require.Error(t, err, name)
			}
			require.NotContains(t, fmt.Sprint(err), "canary", name)
			require.NotContains(t, fmt.Sprint(err), "secret", name)
		}
	})
}

func TestURLsInTextsAreCutDown(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"no URL":                             "no URL",
		"https://h":                          "https://h",
		"https://h/p":                        "https://h/p",
		"a https://u:p@h:80/p/q?x=1&y=2#f b": "a https://h:80/p/q b",
		`Get "https://h/p?token=x": EOF`:     `Get "https://h/p": EOF`,
		"https://h?x http://u@i#f":           "https://h http://i",
		"https://a@b@h/x@y?z":                "https://h/x@y",
		"https://h/p#f?x":                    "https://h/p",
		"x+y://h/?a=https://u:p@i/":          "x+y://h/",
		`https://h/%zz?t=a'canary b`:         "https://h/%zz b",
		`https://h/%zz?t=a"canary" <https://h/p>`:                       "https://h/%zz <https://h/p>",
		`parse "/%zz?token=canary": invalid URL escape "%zz"`:           `parse "/%zz": invalid URL escape "%zz"`,
		`bad "https://u:p w@h/%zz?t=\"canary\" x" and "//u:p@h/?x": no`: `bad "https://h/%zz" and "//h/": no`,
		`a "b" /p?x "c`:                           `a "b" /p "c`,
		`outbound: "h" is full`:                   `outbound: "h" is full`,
		"read tcp 10.0.0.1:80: x":                 "read tcp 10.0.0.1:80: x",
		"proxyconnect tcp: http://u:p@proxy:80 b": "proxyconnect tcp: http://proxy:80 b",
	} {
		require.Equal(t, want, redacted(text), text)
	}
	require.Empty(t, redactedURL(nil))
}

// The key of a refusal is that of the limiter's bucket, or its label, whether the limiter or the API has refused.
func TestARefusalHasOneKeyWhoeverRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keyed := &outbound.Keyed[string]{
			New:   func(key string) (outbound.Limiter, error) { return outbound.NewBucket(key, outbound.PerSecond(1)) },
			Label: func(string) string { return "label" },
		}
		queues := &outbound.Keyed[string]{New: func(key string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(key, outbound.PerSecond(1))
			return queue.New(b, queue.Config{}), err
		}}
		for name, c := range map[string]struct {
			limiter outbound.Limiter
			want    string
		}{
			"a bucket":          {outbound.Must(outbound.NewBucket("b", outbound.PerSecond(1))), "b"},
			"a queue":           {queue.New(outbound.Must(outbound.NewBucket("b", outbound.PerSecond(1))), queue.Config{}), "b"},
			"an observed one":   {outbound.Observe(outbound.Must(outbound.NewBucket("b", outbound.PerSecond(1))), "", func(context.Context, outbound.Event) {}), "b"},
			"a key":             {queues.For("key"), "key"},
			"a key with labels": {keyed.For("secret"), "label"},
		} {
			for kind, rt := range map[string]*transport.Transport{
				"Limiter": {Limiter: c.limiter},
				"For":     {For: func(*http.Request) outbound.Limiter { return c.limiter }},
			} {
				time.Sleep(2 * time.Hour) // the hold before is over
				rt.Base = play(status(429, "Retry-After", "60"))
				client := Config{MaxWait: time.Second}.NewClient(rt)
				for _, by := range []string{"the API", "the limiter"} {
					_, err := get(t, client)
					require.Equal(t, c.want, throttled(t, err).Key, "%s, %s, refused by %s", name, kind, by)
					require.Equal(t, by == "the API", ended(t, err).Attempts == 1)
				}
			}
		}
	})
}

// A RoundTripper whose request the API has refused returns a 429, also if the limiter refuses the last attempt for it.
func TestWhatTheAPIHasRefusedComesBackAsAResponse(t *testing.T) {
	for name, c := range map[string]struct {
		steps  []step
		config Config
	}{
		"too long":              {[]step{status(429, "Retry-After", "60")}, Config{MaxWait: 30 * time.Second}},
		"too often":             {[]step{status(429, "Retry-After", "1")}, Config{MaxThrottled: 2}},
		"until MaxWait is over": {[]step{status(429)}, Config{MaxWait: 20 * time.Second}},
		"a longer hold":         {[]step{status(429, "Retry-After", "1")}, Config{MaxWait: 20 * time.Second}},
	} {
		for kind := range limiters(t) {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					limiter := limiters(t)[kind]
					rt := &RoundTripper{Client: c.config.NewClient(&transport.Transport{Limiter: limiter, Base: play(c.steps...)})}
					resp, err := rt.RoundTrip(requestWith(t, http.MethodGet, "none"))
					require.NoError(t, err)
					require.Equal(t, 429, resp.StatusCode)
					require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
					require.NoError(t, resp.Body.Close())
				})
			})
		}
	}
}
