package outboundtest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// countingBody counts how often it was closed.
type countingBody struct {
	strings.Reader
	closed int
}

func (b *countingBody) Close() error {
	b.closed++
	return nil
}

func mustURL(raw string) *url.URL {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return u
}

// RoundTrip closes the body once, and returns a response or an error. If ctx has ended, that is its cause.
func TestRoundTrip_ClosesTheBodyOnEveryPath(t *testing.T) {
	closing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
		r.Body.Close()
	})
	noticing := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	tests := []struct {
		name    string
		api     *API
		timeout time.Duration // after it ctx ends; 0: it does not
		ended   bool          // ctx has ended before the call
		noURL   bool
		status  int    // 0: an error
		err     string // in the error
	}{
		{name: "answered", api: &API{}, status: 200},
		{name: "answered later", api: &API{Latency: time.Second}, status: 200},
		{name: "answered by a handler that closes it", api: &API{Next: closing}, status: 200},
		{name: "refused", api: &API{Rules: []Rule{LeakyBucket(0.5, 1)}}, status: 429},
		{name: "ctx ended before", api: &API{}, ended: true},
		{name: "ctx ended during the latency", api: &API{Latency: time.Second}, timeout: time.Millisecond},
		{name: "ctx ended during the handler", api: &API{Next: sleepy(time.Second)}, timeout: time.Millisecond},
		{name: "ctx ended during a handler that notices", api: &API{Next: noticing}, timeout: time.Millisecond},
		{name: "ctx ended during a refusal", api: &API{Rules: []Rule{LeakyBucket(0.5, 1)}, Latency: time.Second}, timeout: time.Millisecond},
		{name: "no URL", api: &API{}, noURL: true},
		{name: "the handler panics", api: &API{Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oh") })}, err: "outboundtest: the handler panicked: oh"},
		{name: "the handler exits", api: &API{Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Goexit() })}},
	}
	for _, test := range tests {
		bubble(t, test.name, func(t *testing.T) {
			begin, cause := time.Now(), errors.New("shutting down")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if test.timeout > 0 {
				time.AfterFunc(test.timeout, func() { cancel(cause) })
			}
			if test.ended {
				cancel(cause)
			}
			body := &countingBody{Reader: *strings.NewReader("hello")}
			req, err := http.NewRequestWithContext(ctx, "POST", "http://api.example.com/", body)
			must(t, err)
			if test.noURL {
				req.URL = nil
			}
			res, err := test.api.RoundTrip(req)
			fatalIf(t, (res == nil) == (err == nil), "response %v and error %v, want exactly one", res, err)
			errorIf(t, (test.status == 0) != (err != nil) || res != nil && res.StatusCode != test.status,
				"got %v, %v, want status %d", res, err, test.status)
			errorIf(t, err != nil && !strings.Contains(err.Error(), test.err), "error %v, want %q", err, test.err)
			if test.ended || test.timeout > 0 {
				errorIf(t, err != cause || time.Since(begin) != test.timeout, "error %v after %v, want the cause", err, time.Since(begin))
			}
			time.Sleep(2 * time.Second) // a handler may still hold it
			synctest.Wait()
			errorIf(t, body.closed != 1, "body closed %d times, want once", body.closed)
			r := test.api.Report()
			errorIf(t, r.InProgress != 0 || test.ended && r.Arrivals > 0, "report %+v, want no call in progress, nor one that had ended", r)
		})
	}
}

// sleepy answers after d, whatever becomes of the caller.
func sleepy(d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { time.Sleep(d) })
}

// lateDone is a context whose Done returns after a second.
type lateDone struct{ context.Context }

func (l lateDone) Done() <-chan struct{} {
	time.Sleep(time.Second)
	return l.Context.Done()
}

// A call without a network is as one with it, for both sides.
func TestRoundTrip_IsThatOfAServer(t *testing.T) {
	bubble(t, "If ctx ends when the answer comes, the caller gets the error of ctx", func(t *testing.T) {
		for range 50 { // or a select would decide at random
			ctx, cancel := context.WithCancel(t.Context())
			api := &API{Next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() })}
			req := (&http.Request{URL: mustURL("http://api.example.com/")}).WithContext(lateDone{ctx})
			res, err := api.RoundTrip(req)
			fatalIf(t, res != nil || err != context.Canceled, "got %v, %v, want context.Canceled", res, err)
		}
	})
	bubble(t, "The caller gives up, and Next goes on: the body stays open, and the call is in progress", func(t *testing.T) {
		body := &countingBody{Reader: *strings.NewReader("hello")}
		api := &API{Rules: []Rule{InFlight(1)}, Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "GET" {
				return
			}
			time.Sleep(time.Minute)
			read, err := io.ReadAll(r.Body)
			errorIf(t, string(read) != "hello" || err != nil || body.closed != 0,
				"read %q, %v, closed %d times, want an open body", read, err, body.closed)
		})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://api.example.com/", body)
		_, err := api.RoundTrip(req)
		errorIf(t, err != context.DeadlineExceeded, "got %v, want a timeout", err)
		tell(t, api, "GET", "/", 0).want(t, 429)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		tell(t, api, "GET", "/", 0).want(t, 200)
		errorIf(t, body.closed != 1, "body closed %d times, want once", body.closed)
	})
	t.Run("RoundTrip changes nothing of the request, whatever Next does", func(t *testing.T) {
		vandal := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("X-Changed", "yes")
			r.URL.Path = "/changed"
			r.Host = "changed"
			r.Method = "CHANGED"
			r.Body = nil
		})
		body := &countingBody{}
		newRequest := func() *http.Request {
			req, err := http.NewRequest("POST", "http://user:secret@api.example.com/a%2Fb?c=d#e", body)
			must(t, err)
			req.Header.Set("X-Mine", "1")
			return req
		}
		req := newRequest()
		res, err := (&API{Next: vandal}).RoundTrip(req)
		must(t, err)
		want := newRequest()
		errorIf(t, !reflect.DeepEqual(req, want), "got  %+v\nwant %+v", req, want)
		errorIf(t, res.Request != req, "the response does not carry the request")
	})
	t.Run("Next gets the request as a server's handler does", func(t *testing.T) {
		var got *http.Request
		var read string
		api := &API{Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got, read = r, string(body)
		})}
		req, _ := http.NewRequest("", "http://user:secret@api.example.com/a%2Fb?c=d#e", strings.NewReader("hello"))
		must(t, errOf(api.RoundTrip(req)))
		if got.Method != "GET" || got.Host != "api.example.com" || got.RequestURI != "/a%2Fb?c=d" || got.URL.String() != "/a%2Fb?c=d" ||
			got.ContentLength != 5 || read != "hello" || got.RemoteAddr == "" {
			t.Errorf("got %+v with body %q", got, read)
		}
		// A RoundTripper may get as little as this.
		must(t, errOf(api.RoundTrip(&http.Request{URL: mustURL("http://api.example.com")})))
		if got.Method != "GET" || got.Header == nil || got.Body == nil || got.URL.Path != "" || got.RequestURI != "/" {
			t.Errorf("got %+v", got)
		}
	})
}

// The response is as that of http.Transport.
func TestRoundTrip_ResponseIsAClients(t *testing.T) {
	tests := []struct {
		method string
		status int
		text   string
		body   string
		length int64
	}{
		{"GET", 200, "200 OK", "hello", 5},
		{"GET", 429, "429 Too Many Requests", "hello", 5},
		{"HEAD", 200, "200 OK", "", 5},
		{"GET", 204, "204 No Content", "", 0},
		{"GET", 304, "304 Not Modified", "", 0},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.text, func(t *testing.T) {
			req, _ := http.NewRequest(test.method, "http://api.example.com/", nil)
			res, err := (&API{Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Answer", "yes")
				w.WriteHeader(test.status)
				io.WriteString(w, "hello")
			})}).RoundTrip(req)
			must(t, err)
			body, err := io.ReadAll(res.Body)
			fatalIf(t, err != nil || res.Body.Close() != nil, "the body cannot be read and closed")
			if res.StatusCode != test.status || res.Status != test.text || string(body) != test.body ||
				res.ContentLength != test.length || res.Header.Get("X-Answer") != "yes" || res.Proto != "HTTP/1.1" || res.Request != req {
				t.Errorf("got %+v with body %q", res, body)
			}
		})
	}
}
