package transport_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// refuseStreams is an HTTP/2 server that refuses each request of a connection with
// REFUSED_STREAM, and calls f for each. It returns when the connection ends.
func refuseStreams(c net.Conn, f func()) {
	const headers, rstStream, settings, refusedStream = 1, 3, 4, 7
	defer c.Close()
	if _, err := io.CopyN(io.Discard, c, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	out := make(chan []byte, 100) // a pipe has no buffer, and the client writes while it reads
	defer close(out)
	go func() {
		for frame := range out {
			_, _ = c.Write(frame)
		}
	}()
	out <- []byte{0, 0, 0, settings, 0, 0, 0, 0, 0}
	for {
		var head [9]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			return
		}
		switch head[3] {
		case headers:
			f()
			rst := append([]byte{0, 0, 4, rstStream, 0}, head[5:]...)
			out <- binary.BigEndian.AppendUint32(rst, refusedStream)
		case settings:
			if head[4] == 0 {
				out <- []byte{0, 0, 0, settings, 1, 0, 0, 0, 0}
			}
		}
	}
}

// The package's documentation has these numbers, and the code that pays for it.
func TestCountingWhatHTTP2SendsAgainPaysForIt(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		synctest.Test(t, func(t *testing.T) {
			var times []time.Duration
			var dials atomic.Int64
			begin := time.Now()
			base := &http.Transport{
				Protocols: new(http.Protocols),
				DialContext: func(context.Context, string, string) (net.Conn, error) {
					dials.Add(1)
					client, server := net.Pipe()
					go refuseStreams(server, func() { times = append(times, time.Since(begin)) })
					return client, nil
				},
			}
			base.Protocols.SetUnencryptedHTTP2(true)
			bucket := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 100, LeakRate: 1e-4}))
			client := &http.Client{Transport: &transport.Transport{Base: base, Limiter: bucket}}

			var sent atomic.Int64
			ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				WroteRequest: func(httptrace.WroteRequestInfo) { sent.Add(1) },
			})
			var body io.Reader
			if method == http.MethodPost {
				body = strings.NewReader("a body that net/http can read again")
			}
			req, err := http.NewRequestWithContext(ctx, method, "http://api.test/", body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err == nil {
				resp.Body.Close()
				t.Fatal("a request that the server refuses has an answer")
			}
			permit.Settle(outbound.Cost{float64(max(1, sent.Load()))})
			base.CloseIdleConnections()
			synctest.Wait()

			if len(times) != 8 || dials.Load() != 1 || times[len(times)-1] < 63*time.Second {
				t.Errorf("%s: %d requests after %v on %d connections, want 8 in 63 s on one", method, len(times), times, dials.Load())
			}
			s, err := bucket.State(t.Context())
			if err != nil || s.Level < float64(len(times))-0.5 {
				t.Errorf("%s: the API has counted %d requests, and the level is %v, %v", method, len(times), s.Level, err)
			}
		})
	}
}
