package profile_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// While net/http waits for the first bytes of a body that it unpacks, that body cannot be
// closed.
func TestAGzippedBodyThatStallsCanBeClosed(t *testing.T) {
	end := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
		case <-end:
		}
	}))
	defer api.Close()
	defer close(end)
	resp, err := api.Client().Get(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = profile.GitHub.Read(resp, now)
	done := make(chan error, 1)
	go func() { done <- resp.Body.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close still hangs after a minute")
	}
}
