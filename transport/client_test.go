package transport_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// A connection that has switched protocols can be written to, and is in flight until it is closed.
func TestTransport_UpgradesConnection(t *testing.T) {
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
	resp, err := (&http.Client{Transport: &transport.Transport{Base: s.Client().Transport, Limiter: b}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d, body %T", resp.StatusCode, resp.Body)
	}
	_, _ = io.WriteString(rw, "hello\n")
	if line, err := bufio.NewReader(rw).ReadString('\n'); line != "echo hello\n" || err != nil || !full(t, b) {
		t.Errorf("read %q, %v, full %v", line, err, full(t, b))
	}
	if err := rw.Close(); err != nil || full(t, b) {
		t.Errorf("Close: %v, full %v", err, full(t, b))
	}
}

// Connections are used again only if bodies were read and closed. A wrapper that loses either leaks
// one with each request. net/http also opens another one if a connection's writer has not run for 50 ms.
func TestTransport_ReusesConnections(t *testing.T) {
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "text") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	for _, l := range []outbound.Limiter{bucket(slow), slots(1)} {
		for range 20 {
			if err := fetch(t, &transport.Transport{Base: s.Client().Transport, Limiter: l}, s.URL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := opened.Load(); n > 10 {
		t.Errorf("40 requests in a row opened %d connections", n)
	}
}

// A request's body is sent, and a stream is in flight until its end.
func TestTransport_StreamsBodies(t *testing.T) {
	more := make(chan string)
	s := server(t, func(w http.ResponseWriter, req *http.Request) {
		text, _ := io.ReadAll(req.Body)
		_, _ = w.Write(text)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, <-more)
	})
	b := slots(1)
	client := &http.Client{Transport: &transport.Transport{Base: s.Client().Transport, Limiter: b}}
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
