package retry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"
)

func TestResponsesBetweenAttemptsAreDrainedAndClosedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for size, read := range map[int]int{0: 0, 100: 100, 4096: 4096, maxDrain: maxDrain, 10 * maxDrain: maxDrain} {
			for _, code := range []int{429, 500} {
				var first *counted
				client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
					if first != nil {
						require.EqualValues(t, 1, first.closed.Load(), "not closed before the next attempt")
						return &http.Response{StatusCode: 200, Body: newBody("ok"), Request: req}, nil
					}
					first = newBody(strings.Repeat("x", size))
					return &http.Response{StatusCode: code, Body: first, Request: req}, nil
				})))
				_, err := get(t, client)
				require.NoError(t, err)
				require.EqualValues(t, 1, first.closed.Load())
				// io.Copy reads whole buffers, a little more than the 4 KiB of retryablehttp
				// and the 64 KiB of this package.
				require.InDelta(t, read, first.read.Load(), 4096)
				require.GreaterOrEqual(t, int(first.read.Load()), read)
			}
		}
	})
}

// stalling is a body that sends some bytes at once, or now and then, and never ends.
type stalling struct {
	*io.PipeReader
	closed atomic.Int32
}

func (s *stalling) Close() error {
	s.closed.Add(1)
	return s.PipeReader.Close()
}

// newStalling returns a body that fails when ctx ends, as those of net/http do.
func newStalling(ctx context.Context, every time.Duration) *stalling {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	go func() {
		for _, err := io.WriteString(w, "x"); err == nil && every > 0; _, err = io.WriteString(w, "x") {
			time.Sleep(every)
		}
	}()
	return &stalling{PipeReader: r}
}

func TestABodyThatStallsHoldsTheNextAttemptUpForASecondAtMost(t *testing.T) {
	for _, every := range []time.Duration{0, 50 * time.Millisecond} {
		for name, send := range ways {
			synctest.Test(t, func(t *testing.T) {
				var first *stalling
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

func TestEachResponseIsClosedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{status(429, "Retry-After", "3600"), status(500), status(503, "Retry-After", "3600")} {
			for name, send := range ways {
				api := play(what)
				resp, err := send(Config{MaxWait: time.Minute}.NewClient(over(api)), requestWith(t, "GET", "none"))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				for _, body := range api.bodies {
					require.EqualValues(t, 1, body.closed.Load(), name)
				}
			}
		}
	})
}

func TestAPrepareRetryThatFailsEndsWithAClosedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		api := play(status(500))
		client := NewClient(over(api))
		client.PrepareRetry = func(*http.Request) error { return own }
		_, err := get(t, client)
		require.ErrorIs(t, err, own)
		require.Len(t, api.bodies, 1)
		require.EqualValues(t, 1, api.bodies[0].closed.Load())
	})
}

// A body that the program cannot read again ends the request. No text has a part of the URL that may
// be secret.
func TestABodyThatCannotBeReadAgainEndsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, n := errors.New("own"), 0
		req, err := retryablehttp.NewRequest(http.MethodPut, address, func() (io.Reader, error) {
			if n++; n > 2 { // the first one is measured
				return nil, own
			}
			return strings.NewReader("text"), nil
		})
		require.NoError(t, err)
		api := play(status(500))
		_, err = NewClient(over(api)).Do(req)
		require.ErrorIs(t, err, own)
		require.NotContains(t, err.Error(), "canary")
		require.Equal(t, []string{"text"}, api.said)
		require.EqualValues(t, 1, api.bodies[0].closed.Load())
	})
}

// retryablehttp keeps the body that it gets, and sends all of it each time.
func TestBodiesThatRetryablehttpKeepsAreSentWholeEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, body := range []any{
			[]byte("text"),
			bytes.NewBufferString("text"),
			bytes.NewReader([]byte("text")),
			strings.NewReader("text"),
			io.LimitReader(strings.NewReader("text more"), 4),
			func() (io.Reader, error) { return strings.NewReader("text"), nil },
		} {
			api := play(reset, status(503), status(429, "Retry-After", "2"), status(200))
			req, err := retryablehttp.NewRequest(http.MethodPut, address, body)
			require.NoError(t, err)
			_, err = do(NewClient(over(api)), req)
			require.NoError(t, err, "%T", body)
			require.Equal(t, []string{"text", "text", "text", "text"}, api.said, "%T", body)
		}
	})
}

func TestAnUpgradedConnectionIsHandedOn(t *testing.T) {
	type conn struct {
		io.Reader
		io.Writer
		io.Closer
	}
	var wrote bytes.Buffer
	client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 101, Body: conn{strings.NewReader("hello"), &wrote, io.NopCloser(nil)}, Request: req}, nil
	})))
	resp, err := (client.StandardClient()).Get("https://api.example.com/")
	require.NoError(t, err)
	_, err = io.WriteString(resp.Body.(io.Writer), "hi")
	require.NoError(t, err)
	require.Equal(t, "hi", wrote.String())
}

// writer is a body that happens to have a Write method, as one made of a bytes.Buffer has.
type writer struct {
	*counted
	io.Writer
}

// Only the connection of a 101 outlives its request: a long context does not collect what is
// left of all others.
func TestTheRequestOfABodyWithAWriteMethodEndsWithIt(t *testing.T) {
	for status, want := range map[int]error{200: context.Canceled, 101: nil} {
		var sent context.Context
		client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			sent = req.Context()
			return &http.Response{StatusCode: status, Body: writer{newBody("text"), io.Discard}, Request: req}, nil
		})))
		resp, err := get(t, client)
		require.NoError(t, err)
		require.Equal(t, status, resp.StatusCode)
		require.ErrorIs(t, sent.Err(), want, "%d", status)
	}
}
