package transport_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// rude is a server that answers the first request of each connection. It reads and counts the second
// as well, and closes the connection.
type rude struct {
	net.Listener
	requests atomic.Int64
	together sync.WaitGroup // waits until each of the first requests has a connection of its own
}

func newRude(t *testing.T, connections int) *rude {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rude{Listener: l}
	r.together.Add(connections)
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c, n < connections)
		}
	}()
	return r
}

func (r *rude) serve(c net.Conn, early bool) {
	defer c.Close()
	in := bufio.NewReader(c)
	for n := 0; n < 2; n++ {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		r.requests.Add(1)
		if n == 0 {
			if early {
				r.together.Done()
				r.together.Wait()
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}
}

// A program that counts with a ClientTrace what net/http sends again pays for it. The package's
// documentation recommends this.
func TestResend_CountedRequestsArePaid(t *testing.T) {
	const idle = 5
	for name, up := range map[string]bool{"answered by a new connection": true, "no new connection": false} {
		t.Run(name, func(t *testing.T) {
			server := newRude(t, idle)
			defer server.Close()
			base := &http.Transport{MaxIdleConnsPerHost: idle}
			defer base.CloseIdleConnections()
			b := bucket(slow)
			rt := &transport.Transport{Base: base, Limiter: b}
			url := "http://" + server.Addr().String()
			if err := together(idle, func() error { return fetch(t, rt, url) }); err != nil {
				t.Fatal(err)
			}
			if !up {
				server.Close()
			}
			before := server.requests.Load()

			var sent atomic.Int64
			ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				WroteRequest: func(httptrace.WroteRequestInfo) { sent.Add(1) },
			})
			_, err := getURL(ctx, rt, url)
			permit.Settle(outbound.Cost{float64(max(1, sent.Load()))})

			got := server.requests.Load() - before
			// A connection whose writer has not run for 50 ms is not idle, so the number may be smaller.
			if (err == nil) != up || got < 2 {
				t.Errorf("the API has counted %d requests of one call, want several; %v", got, err)
			}
			if s := stateOf(t, b); s.Level < float64(before+got)-0.5 {
				t.Errorf("the API has counted %d requests, and the level is %v", before+got, s.Level)
			}
		})
	}
}
