package transport_test

import (
	"bufio"
	"context"
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

// rude is a server that answers the first request of each connection. It reads and counts the
// second as well, and hangs up.
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

// The package's documentation has this code.
func TestCountingWhatNetHTTPSendsAgainPaysForIt(t *testing.T) {
	const idle = 5
	for name, up := range map[string]bool{"answered by a new connection": true, "no new connection": false} {
		t.Run(name, func(t *testing.T) {
			server := newRude(t, idle)
			defer server.Close()
			base := &http.Transport{MaxIdleConnsPerHost: idle}
			defer base.CloseIdleConnections()
			bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 1e-4}))
			client := &http.Client{Transport: &transport.Transport{Base: base, Limiter: bucket}}
			get := func(ctx context.Context) error {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.Addr().String(), nil)
				if err != nil {
					t.Error(err)
					return err
				}
				resp, err := client.Do(req)
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				return resp.Body.Close()
			}
			var warm sync.WaitGroup
			for range idle {
				warm.Go(func() {
					if err := get(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			warm.Wait()
			if !up {
				server.Close()
			}
			before := server.requests.Load()

			var sent atomic.Int64
			ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				WroteRequest: func(httptrace.WroteRequestInfo) { sent.Add(1) },
			})
			err := get(ctx)
			permit.Settle(outbound.Cost{float64(max(1, sent.Load()))})

			got := server.requests.Load() - before
			want := int64(idle)
			if up {
				want++
			}
			if (err == nil) != up || got != want {
				t.Errorf("the API has counted %d requests of one call, want %d; %v", got, want, err)
			}
			s, err := bucket.State(t.Context())
			if err != nil || s.Level < float64(before+got)-0.5 {
				t.Errorf("the API has counted %d requests, and the level is %v, %v", before+got, s.Level, err)
			}
		})
	}
}
