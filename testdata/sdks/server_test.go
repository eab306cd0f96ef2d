package sdks

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// pacing is the transport of an SDK's requests, with holds and pauses of no more than 10
// ms.
func pacing(t *testing.T, onRefusal func(*http.Request, error) (*http.Response, error)) *transport.Transport {
	bucket, err := outbound.NewBucket("api", outbound.PerSecond(1000))
	require.NoError(t, err)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &transport.Transport{
		Base:      base,
		Limiter:   queue.New(bucket, queue.Config{}),
		MaxHold:   10 * time.Millisecond,
		OnRefusal: onRefusal,
	}
}

// paced returns a client that sends a request again up to 4 times.
func paced(t *testing.T) *http.Client {
	client := retry.Config{MaxWait: 30 * time.Second}.NewClient(pacing(t, nil))
	client.RetryWaitMin, client.RetryWaitMax = time.Millisecond, time.Millisecond
	return client.StandardClient()
}

// full returns a client whose bucket has no room for an hour, and that says so by a 429.
func full(t *testing.T) *http.Client {
	held := pacing(t, transport.TooManyRequests)
	bucket, err := outbound.NewBucket("api", outbound.PerSecond(1))
	require.NoError(t, err)
	require.NoError(t, bucket.Hold(t.Context(), time.Hour))
	held.Limiter = bucket
	return &http.Client{Transport: held}
}

// The tests of the SDKs compare their attempts with this number.
func TestRequest_PlainOneMakesFiveAttempts(t *testing.T) {
	for _, status := range []int{429, 503} {
		s := answer(t, status, "{}", "Retry-After", "0.01")
		resp, err := paced(t).Get(s.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, status, resp.StatusCode)
		require.Equal(t, 5, s.made())
	}
}
