package transport

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestTypedErrorsComeBackThroughTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1)))
		client := &http.Client{Transport: &Transport{Base: answer(200, http.NoBody), Limiter: b}}
		if _, err := client.Get("https://api.example.com/?token=canary"); err != nil {
			t.Fatal(err)
		}
		_, err := client.Get("https://api.example.com/")
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || !errors.Is(err, outbound.ErrThrottled) || full.RetryAfter <= 0 {
			t.Errorf("%v", err)
		}
		var outer *url.Error
		if !errors.As(err, &outer) || outer.Timeout() {
			t.Errorf("no room is not a timeout: %v", err)
		}
	})
}

func TestClientTimeoutEndsACallThatBaseNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := slots(1)
		hung := base(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		client := &http.Client{Transport: &Transport{Base: hung, Limiter: b}, Timeout: time.Second}
		_, err := client.Get("https://api.example.com/")
		var outer *url.Error
		if !errors.As(err, &outer) || !outer.Timeout() || full(t, b) {
			t.Errorf("%v, full %v", err, full(t, b))
		}
	})
}

func TestCancelWhileWaitingIsTheContextsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		body := newBody("x")
		rt := &Transport{Base: answer(200, nil), Limiter: waiting(time.Minute)}
		if _, err := rt.RoundTrip(newRequest(t, body).WithContext(ctx)); err != context.Canceled {
			t.Errorf("%v", err)
		}
		if body.closed.Load() != 1 {
			t.Error("the body is open")
		}
	})
}

func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEachHopOfARedirectPaysToItsOwnHost(t *testing.T) {
	var a, b *httptest.Server
	a = server(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/start" {
			http.Redirect(w, req, b.URL+"/", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "at last")
	})
	b = server(t, func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, a.URL+"/end", http.StatusFound) })
	hosts := map[string]*recorder{strings.TrimPrefix(a.URL, "http://"): {}, strings.TrimPrefix(b.URL, "http://"): {}}
	client := &http.Client{Transport: &Transport{Base: a.Client().Transport, For: ByHost(func(host string) outbound.Limiter { return hosts[host] })}}
	if text := get(t, client, a.URL+"/start"); text != "at last" {
		t.Errorf("read %q", text)
	}
	for host, want := range map[*httptest.Server]string{a: "acquire 1, done, acquire 1, done", b: "acquire 1, done"} {
		if got := hosts[strings.TrimPrefix(host.URL, "http://")].heard(); got != want {
			t.Errorf("%s heard %q, want %q", host.URL, got, want)
		}
	}
}

func TestRedirectLoopPaysForEachHopAndEnds(t *testing.T) {
	r := new(recorder)
	s := server(t, func(w http.ResponseWriter, req *http.Request) { http.Redirect(w, req, "/", http.StatusFound) })
	client := &http.Client{Transport: &Transport{Base: s.Client().Transport, Limiter: r}}
	if _, err := client.Get(s.URL); err == nil {
		t.Error("the loop has not ended")
	}
	if want, got := strings.Repeat("acquire 1, done, ", 10), r.heard()+", "; got != want {
		t.Errorf("heard %q, want ten requests", got)
	}
}

func TestUpgradedConnectionIsWritable(t *testing.T) {
	s := server(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	})
	b := slots(1)
	req, err := http.NewRequest(http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := (&http.Client{Transport: &Transport{Base: s.Client().Transport, Limiter: b}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d, body %T", resp.StatusCode, resp.Body)
	}
	_, _ = io.WriteString(rw, "hello\n")
	if line, err := bufio.NewReader(rw).ReadString('\n'); line != "echo hello\n" || err != nil {
		t.Errorf("read %q, %v", line, err)
	}
	if !full(t, b) {
		t.Error("the call has ended before the connection")
	}
	if err := rw.Close(); err != nil || full(t, b) {
		t.Errorf("Close: %v, full %v", err, full(t, b))
	}
}

// Connections are used again only if bodies were read and closed: a wrapper
// that loses either leaks one with each request. net/http opens another one too if a connection's
// writer has not run for 50 ms.
func TestConnectionsAreUsedAgain(t *testing.T) {
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "text") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	for _, l := range []outbound.Limiter{outbound.Must(outbound.NewBucket("one", outbound.Limit{Capacity: 100, LeakRate: 1})), slots(1)} {
		client := &http.Client{Transport: &Transport{Base: s.Client().Transport, Limiter: l}}
		for range 20 {
			if text := get(t, client, s.URL); text != "text" {
				t.Fatalf("read %q", text)
			}
		}
	}
	if n := opened.Load(); n > 10 {
		t.Errorf("40 requests in a row opened %d connections", n)
	}
}

func TestRequestBodyIsSentAndAStreamKeepsItsPlace(t *testing.T) {
	more := make(chan string)
	s := server(t, func(w http.ResponseWriter, req *http.Request) {
		text, _ := io.ReadAll(req.Body)
		_, _ = w.Write(text)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, <-more)
	})
	b := slots(1)
	client := &http.Client{Transport: &Transport{Base: s.Client().Transport, Limiter: b}}
	resp, err := client.Post(s.URL, "text/plain", strings.NewReader("ping "))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	start := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, start); string(start) != "ping " || err != nil || !full(t, b) {
		t.Errorf("read %q, %v, full %v", start, err, full(t, b))
	}
	more <- "pong"
	if rest, err := io.ReadAll(resp.Body); string(rest) != "pong" || err != nil || full(t, b) {
		t.Errorf("read %q, %v, full %v", rest, err, full(t, b))
	}
}
