package transport

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// usages returns what a client of the API at this address hears at its calls' ends. It
// decodes each answer and closes it.
func usages(t *testing.T, s *httptest.Server, decoded func()) (heard []string) {
	t.Helper()
	rt := &Transport{Base: s.Client().Transport, OnResponse: func(resp *http.Response, _ *outbound.Permit) {
		AtEnd(resp, 100, func(tail []byte) { heard = append(heard, string(tail)) })
	}}
	for range 20 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.NewDecoder(resp.Body).Decode(&value); err != nil {
			t.Fatal(err)
		}
		decoded()
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	return heard
}

// In a bubble no time passes while a goroutine waits for the network, so a slow machine does
// not matter.
func TestAtEndIsCalledWhenAJSONAnswerHasBeenDecodedAndClosed(t *testing.T) {
	const text = `{"usage": 42}`
	for name, c := range map[string]struct {
		http2, apart bool // the end comes after the value has been decoded
	}{
		"HTTP/1":        {},
		"HTTP/1, apart": {apart: true},
		"HTTP/2":        {http2: true},
		"HTTP/2, apart": {http2: true, apart: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				decoded := make(chan struct{})
				s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					if (req.ProtoMajor == 2) != c.http2 {
						t.Errorf("the protocol is %s", req.Proto)
					}
					_, _ = io.WriteString(w, text)
					if c.apart {
						_ = http.NewResponseController(w).Flush()
						<-decoded
					}
				}))
				if s.EnableHTTP2 = c.http2; c.http2 {
					s.StartTLS()
				} else {
					s.Start()
				}
				defer s.Close()
				heard := usages(t, s, func() {
					if c.apart {
						decoded <- struct{}{}
					}
				})
				if want := strings.Repeat(text, 20); strings.Join(heard, "") != want {
					t.Errorf("heard of %d ends of 20: %q", len(heard), heard)
				}
			})
		})
	}
}

func TestCloseWaitsForTheEndOfABodyNoLongerThanATenthOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, drip := range []time.Duration{time.Hour, 30 * time.Millisecond} {
			r, w := io.Pipe()
			resp := &http.Response{StatusCode: 200, Body: r}
			AtEnd(resp, 10, func([]byte) { t.Error("called") })
			var writer sync.WaitGroup
			writer.Go(func() {
				for {
					if _, err := w.Write([]byte("x")); err != nil {
						return // the body was closed
					}
					time.Sleep(drip)
				}
			})
			_, _ = resp.Body.Read(make([]byte, 1))
			begin := time.Now()
			_ = resp.Body.Close()
			if took := time.Since(begin); took != 100*time.Millisecond {
				t.Errorf("every %v: closed after %v", drip, took)
			}
			if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
				t.Error("it can still be read")
			}
			_ = resp.Body.Close()
			writer.Wait()
		}
	})
}

// If one goroutine closes a body while another reads it, the reading ends.
func TestAtEndLeavesABodyThatIsBeingReadToItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := io.Pipe()
		resp := &http.Response{StatusCode: 200, Body: r}
		AtEnd(resp, 10, func([]byte) { t.Error("called") })
		var reader sync.WaitGroup
		reader.Go(func() {
			if _, err := io.ReadAll(resp.Body); err != io.ErrClosedPipe {
				t.Error(err)
			}
		})
		synctest.Wait()
		begin := time.Now()
		_ = resp.Body.Close()
		reader.Wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("closed after %v", took)
		}
	})
}

func TestAtEndIsCalledWithTheBytesThatCloseReads(t *testing.T) {
	for _, more := range []int{0, 1, 600, 4000} {
		var tails []string
		text := strings.Repeat("0123456789", 400)[:more] + "the end"
		body := newBody("some text" + text)
		resp := &http.Response{StatusCode: 200, Body: body}
		AtEnd(resp, 10, func(tail []byte) { tails = append(tails, string(tail)) })
		_, _ = resp.Body.Read(make([]byte, 9))
		_ = resp.Body.Close()
		_ = resp.Body.Close()
		if want := ("some text" + text)[len("some text"+text)-10:]; len(tails) != 1 || tails[0] != want {
			t.Errorf("%d bytes more: %q, want %q", more, tails, want)
		}
	}
}
