package retry

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// While net/http waits for the first bytes of a body that it unpacks, that body cannot be
// closed.
func TestAGzippedBodyThatStallsHoldsNothingUp(t *testing.T) {
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
