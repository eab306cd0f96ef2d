package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// TooManyRequests is a 429 as SDKs read it.
func TestTooManyRequests_IsA429(t *testing.T) {
	t.Run("The response has whole seconds, rounded up and at least 1, in a header and a body that clients and SDKs read. It has no body for a HEAD", func(t *testing.T) {
		for wait, want := range map[time.Duration]string{
			0:                       "1", // the time is not known
			1:                       "1",
			time.Second:             "1",
			time.Second + 1:         "2",
			90 * time.Second:        "90",
			1500 * time.Millisecond: "2",
			math.MaxInt64:           "9223372037",
		} {
			reason := &outbound.ThrottledError{Key: "api", RetryAfter: wait}
			req := newRequest(t, nil)
			resp := must(transport.TooManyRequests(req, errors.Join(errors.New("outer"), reason)))
			text, err := io.ReadAll(resp.Body)
			errorIf(t, err != nil || int64(len(text)) != resp.ContentLength,
				"body %q, %v, of a length of %d", text, err, resp.ContentLength)
			// SDKs look for the text in one of two places, and Discord's for the time in a third.
			var body struct {
				Message string
				Error   struct{ Message string }
				Seconds json.Number `json:"retry_after"`
			}
			if err := json.Unmarshal(text, &body); err != nil || !strings.Contains(body.Message, reason.Error()) || body.Error.Message != body.Message || body.Seconds.String() != want {
				t.Errorf("%s: %+v, %v", text, body, err)
			}
			if got := resp.Header.Get("Retry-After"); got != want || resp.StatusCode != 429 || resp.Request != req || resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%v: status %d, Retry-After %q, want %q", wait, resp.StatusCode, got, want)
			}
			_, err = httputil.DumpResponse(resp, false)
			check(t, err)
		}
		head := newRequest(t, nil)
		head.Method = http.MethodHead
		resp, err := transport.TooManyRequests(head, &outbound.ThrottledError{})
		errorIf(t, err != nil || resp.Body != http.NoBody, "HEAD: %v, %v", resp, err)
		for _, reason := range []error{outbound.ErrTooLarge, io.EOF, &outbound.StoreError{Err: io.EOF}, nil} {
			resp, err := transport.TooManyRequests(newRequest(t, nil), reason)
			errorIf(t, resp != nil || err != reason, "%v: %v, %v", reason, resp, err)
		}
	})
	bubble(t, "If the context ends before the time to retry, the response rules a retry out: else SDKs sleep until the context ends, and report that instead of the 429", func(t *testing.T) {
		// If it is over, the error is returned, because discordgo would ask for ever.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req := newRequest(t, nil).WithContext(ctx)
		for wait, want := range map[time.Duration]string{0: "", time.Minute: "", time.Minute + 1: "false"} {
			resp, err := transport.TooManyRequests(req, &outbound.ThrottledError{RetryAfter: wait})
			errorIf(t, err != nil || resp.Header.Get("X-Should-Retry") != want,
				"%v: %v, %v, want X-Should-Retry %q", wait, resp, err, want)
		}
		<-ctx.Done()
		over := &outbound.ThrottledError{RetryAfter: time.Second}
		resp, err := transport.TooManyRequests(req, over)
		errorIf(t, resp != nil || err != error(over), "after the context: %v, %v", resp, err)
	})
}

// OnRefusal decides what a request that was not admitted returns.
func TestOnRefusal_DecidesTheResult(t *testing.T) {
	reason, other := errors.New("reason"), errors.New("other")
	body := newBody("x")
	made := &http.Response{StatusCode: 429, Body: body}
	for name, c := range map[string]struct {
		onRefusal func(*http.Request, error) (*http.Response, error)
		resp      *http.Response
		err       error
	}{
		"nil":        {nil, nil, reason},
		"response":   {func(*http.Request, error) (*http.Response, error) { return made, nil }, made, nil},
		"error":      {func(*http.Request, error) (*http.Response, error) { return nil, other }, nil, other},
		"same error": {func(_ *http.Request, err error) (*http.Response, error) { return nil, err }, nil, reason},
		"neither":    {func(*http.Request, error) (*http.Response, error) { return nil, nil }, nil, reason},
		"both":       {func(*http.Request, error) (*http.Response, error) { return made, other }, nil, other},
	} {
		body.closed.Store(0)
		rt := &transport.Transport{
			Limiter: refusing(reason), OnRefusal: c.onRefusal,
			OnResponse: func(*http.Response, *outbound.Permit) { t.Errorf("%s: OnResponse was called", name) },
		}
		resp, err := rt.RoundTrip(newRequest(t, nil))
		errorIf(t, resp != c.resp || err != c.err, "%s: %v, %v", name, resp, err)
		equal(t, body.closed.Load() == 1, name == "both", "%s: the response's body closed", name)
	}
}
