package retry

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// A response between two attempts is read up to 64 KiB, and closed once before the next attempt.
func TestBody_DrainedAndClosedBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for size, read := range map[int]int{0: 0, 100: 100, 4096: 4096, maxDrain: maxDrain, 10 * maxDrain: maxDrain} {
			for _, code := range []int{429, 500} {
				var first *counted
				client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
					if first != nil {
						require.EqualValues(t, 1, first.closed.Load(), "not closed before the next attempt")
						return status(200).response(req, newBody("ok")), nil
					}
					first = newBody(strings.Repeat("x", size))
					return status(code).response(req, first), nil
				})))
				answered(t, 200, client)
				require.EqualValues(t, 1, first.closed.Load())
				// io.Copy reads whole buffers, a little more than the 4 KiB of retryablehttp
				// and the 64 KiB of this package.
				require.InDelta(t, read, first.read.Load(), 4096)
				require.GreaterOrEqual(t, int(first.read.Load()), read)
			}
		}
	})
}

// newStalling returns a body that sends a byte, or one each time, and never ends. It fails when ctx ends, as those of
// net/http do.
func newStalling(ctx context.Context, every time.Duration) *counted {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	go func() {
		for _, err := io.WriteString(w, "x"); err == nil && every > 0; _, err = io.WriteString(w, "x") {
			time.Sleep(every)
		}
	}()
	return &counted{Reader: r}
}

// A body that stalls delays the next attempt for a second at most.
func TestBody_AStallDelaysTheNextAttemptForASecond(t *testing.T) {
	for _, every := range []time.Duration{0, 50 * time.Millisecond} {
		for name, send := range ways {
			synctest.Test(t, func(t *testing.T) {
				var first *counted
				begin := time.Now()
				client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
					if first == nil {
						first = newStalling(req.Context(), every)
						return &http.Response{StatusCode: 500, Body: first, Request: req}, nil
					}
					return &http.Response{StatusCode: 200, Body: newBody("ok"), Request: req}, nil
				})))
				client.RetryWaitMax = time.Second
				resp, err := send(client, requestWith(t, "GET", "none"))
				require.NoError(t, err, name)
				require.Equal(t, 200, resp.StatusCode)
				require.LessOrEqual(t, time.Since(begin), drainFor+3*time.Second/2)
				require.EqualValues(t, 1, first.closed.Load())
				time.Sleep(every) // the writer has to notice that
			})
		}
	}
}

// conn is a body with a Write method, such as the connection of a 101.
type conn struct {
	*counted
	io.Writer
}

// Only the connection of a 101 outlives its request, and the program can write to it.
func TestBody_OnlyAnUpgradedConnectionOutlivesItsRequest(t *testing.T) {
	for status, want := range map[int]error{200: context.Canceled, 101: nil} {
		var sent context.Context
		var wrote strings.Builder
		client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			sent = req.Context()
			return &http.Response{StatusCode: status, Body: conn{newBody("text"), &wrote}, Request: req}, nil
		})))
		resp := answered(t, status, client)
		require.ErrorIs(t, sent.Err(), want, "%d", status)
		if status == 101 {
			must(io.WriteString(resp.Body.(io.Writer), "hi"))
			require.Equal(t, "hi", wrote.String())
		}
	}
}

// While net/http waits for the first bytes of a body that it unpacks, that body cannot be closed.
func TestBody_AGzippedStallDelaysNothing(t *testing.T) {
	var calls atomic.Int32
	end := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if calls.Add(1) > 1 {
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusInternalServerError)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
		case <-end:
		}
	}))
	defer api.Close()
	defer close(end)
	base := api.Client().Transport.(*http.Transport)
	b := bucket(t, outbound.PerSecond(1000), outbound.InFlight(1))
	client := NewClient(&transport.Transport{Base: base, Limiter: b})
	client.RetryWaitMin, client.RetryWaitMax = time.Millisecond, time.Millisecond

	done := make(chan error, 1)
	go func() {
		resp, err := client.Get(api.URL)
		if err == nil {
			err = resp.Body.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
		require.EqualValues(t, 2, calls.Load())
	case <-time.After(time.Minute):
		t.Fatal("the request still hangs after a minute")
	}
}
