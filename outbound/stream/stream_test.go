package stream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/stream"
	"github.com/dripfeed/dripfeed/queue"
)

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// a megabyte a second, in bursts of 2 %.
func link() (*outbound.Bucket, stream.Pacer) {
	b := outbound.Must(outbound.NewBucket("link", outbound.PerSecond(1e6).Burst(20_000)))
	return b, stream.Pacer{Limiter: queue.New(b, queue.Config{})}
}

// zeros is a body of so many bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// seconds counts the bytes of each second.
type seconds struct {
	mu    sync.Mutex
	began time.Time
	bytes [64]int
	sum   float64
}

func (s *seconds) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes[int(time.Since(s.began)/time.Second)] += len(p)
	return len(p), nil
}

// even checks the whole seconds from the second one on. Without a want it is their average.
func (s *seconds) even(t *testing.T, what string, upTo int, want float64) {
	t.Helper()
	for i := 1; i < upTo && want <= 0; i++ {
		s.sum += float64(s.bytes[i])
	}
	want = max(want, s.sum/float64(upTo-1))
	for i := 1; i < upTo; i++ {
		n := float64(s.bytes[i])
		errorIf(t, n < 0.95*want || n > 1.05*want, "%s: %g bytes in second %d, want %g", what, n, i, want)
	}
}

// pipes is a network within a bubble.
type pipes struct {
	conns chan net.Conn
	done  context.Context
	close func()
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done.Done():
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { p.close(); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

// An upload and a download of one limit at once are even in each second within 5 %, and so is each.
func TestStream_UploadAndDownloadAreEven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 10e6
		_, pacer := link()
		up, down, both := &seconds{began: time.Now()}, &seconds{began: time.Now()}, &seconds{began: time.Now()}
		network := pipes{conns: make(chan net.Conn)}
		network.done, network.close = context.WithCancel(t.Context())
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				_, _ = io.Copy(io.MultiWriter(up, both), r.Body)
				return
			}
			_, _ = io.Copy(w, zeros(size))
		}))
		server.Listener = network
		server.Start()
		transport := &http.Transport{DialContext: network.dial}
		client := &http.Client{Transport: transport}
		var streams sync.WaitGroup
		streams.Go(func() {
			req := must(http.NewRequestWithContext(t.Context(), http.MethodPut, "http://api.example.com/", must(pacer.Reader(t.Context(), zeros(size), size))))
			req.ContentLength = size
			_ = must(client.Do(req)).Body.Close()
		})
		streams.Go(func() {
			res := must(client.Get("http://api.example.com/"))
			defer res.Body.Close()
			must(io.Copy(io.MultiWriter(down, both), must(pacer.Reader(t.Context(), res.Body, res.ContentLength))))
		})
		streams.Wait()
		took := int(time.Since(both.began) / time.Second)
		errorIf(t, took < 20 || took > 21, "20 MB took %d s", took)
		rate := (1e6 - 20_000 + 1) / 1.01
		both.even(t, "both", took-1, rate)
		up.even(t, "up", took-2, 0) // its chunks are larger, and it ends first
		down.even(t, "down", took-2, 0)
		errorIf(t, up.sum < 0.8*down.sum || down.sum < 0.8*up.sum, "%g bytes up, and %g down", up.sum, down.sum)
		transport.CloseIdleConnections()
		server.Close()
	})
}

// A deadline before the last byte fails at the start, and nothing is read or charged. One that
// suffices does not fail.
func TestStream_LateDeadlineFailsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			length int64
			within time.Duration
			late   bool
		}{{10e6, 9 * time.Second, true}, {10e6, 11 * time.Second, false}, {10e12, 100 * 24 * time.Hour, true}, {10e12, 200 * 24 * time.Hour, false}, {0, time.Second, false}, {-1, time.Second, false}} {
			b, pacer := link()
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			_, err := pacer.Reader(ctx, iotest.ErrReader(errors.New("read")), c.length)
			_, same := pacer.Writer(ctx, nil, c.length)
			s, _ := b.State(t.Context())
			late := errors.Is(err, context.DeadlineExceeded) && errors.Is(err, outbound.ErrThrottled)
			errorIf(t, late != c.late || (err == nil) == c.late || (same == nil) == c.late || s.Level != 0, "%+v: %v, %v, level %g", c, err, same, s.Level)
		}
	})
}

// A source that pauses is charged for what came. The other stream has the rest meanwhile, and no
// second has more than the limit.
func TestStream_SlowSourceDoesNotHoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, pacer := link()
		both := &seconds{began: time.Now()}
		fast := &seconds{began: time.Now()}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		here, there := io.Pipe()
		go func() { // 10,000 bytes a second, 100 at a time
			for ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
				_, _ = there.Write(make([]byte, 100))
			}
			there.Close()
		}()
		var streams sync.WaitGroup
		for _, s := range []struct {
			from io.Reader
			to   io.Writer
		}{{here, both}, {zero{}, io.MultiWriter(both, fast)}} {
			r := must(pacer.Reader(ctx, s.from, 0))
			streams.Go(func() { _, _ = io.Copy(s.to, r) })
		}
		streams.Wait()
		rate := (1e6 - 20_000 + 1) / 1.01
		both.even(t, "both", 9, rate)
		fast.even(t, "fast", 9, rate-10_000)
	})
}

// A read that is not admitted loses no byte: later reads return all.
func TestStream_RefusedReadLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("link", outbound.Limit{Capacity: 10, LeakRate: 1000}.Of(1, "bytes")))
		r := must(stream.Pacer{Limiter: queue.New(b, queue.Config{MaxLen: 1, MaxWait: 4 * time.Millisecond}), Unit: 1}.Reader(t.Context(), iotest.DataErrReader(strings.NewReader("dripping water hollows out the stone")), 0))
		var got []byte
		for refused := 0; ; {
			p := make([]byte, 7)
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				errorIf(t, string(got) != "dripping water hollows out the stone" || refused == 0,
					"got %q, %d refusals", got, refused)
				break
			}
			if full := (*outbound.ThrottledError)(nil); errors.As(err, &full) {
				refused++
				time.Sleep(full.RetryAfter)
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A stream goes on if its chunks no longer fit: with a Headroom, after SetLimits, and for a length of
// more than a billion times the capacity.
func TestStream_ChunksShrinkToTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			burst, then, headroom float64
			length                int64
		}{{1000, 0, 0.5, 9000}, {20_000, 700, 0, 100_000}, {5000, 0, 0, 5e12}, {5000, 1, 0, 10_000}} {
			b := outbound.Must(outbound.NewBucket("link", outbound.PerSecond(1e6).Burst(c.burst)))
			pacer := stream.Pacer{Limiter: queue.New(b, queue.Config{Headroom: c.headroom})}
			r := must(pacer.Reader(t.Context(), zeros(min(c.length, 100_000)), c.length))
			w := must(pacer.Writer(t.Context(), io.Discard, c.length))
			if c.then > 0 {
				err := b.SetLimits(t.Context(), outbound.PerSecond(1e6).Burst(c.then))
				errorIf(t, err != nil, "%v", err)
			}
			n, err := io.Copy(w, r)
			errorIf(t, n != min(c.length, 100_000) || err != nil, "%+v: %d bytes, %v", c, n, err)
		}
		_, pacer := link()
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		_, err := pacer.Reader(ctx, nil, 5e17)
		errorIf(t, !errors.Is(err, context.DeadlineExceeded), "%v", err)
	})
}

// A read of no bytes asks neither the source nor the limiter: what is left stays, and then its end.
func TestStream_EmptyReadAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("link", outbound.PerSecond(10).Burst(10)))
		_, _ = b.Acquire(t.Context(), outbound.Cost{10})
		r := must(stream.Pacer{Limiter: b}.Reader(t.Context(), strings.NewReader("abc"), 3))
		if _, err := r.Read(make([]byte, 9)); !errors.Is(err, outbound.ErrThrottled) {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		for range 2 {
			n, err := r.Read(nil)
			errorIf(t, n != 0 || err != nil, "%d, %v", n, err)
		}
		got, err := io.ReadAll(r)
		errorIf(t, string(got) != "abc" || err != nil, "%q, %v", got, err)
	})
}

// partial takes three bytes of each write.
type partial struct{ bytes.Buffer }

func (p *partial) Write(b []byte) (int, error) { return p.Buffer.Write(b[:min(3, len(b))]) }

// A write that the sink takes in part is charged that part. Writes and reads are charged what
// passes, once.
func TestStream_ChargesWhatPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("link", outbound.Limit{Capacity: 1000, LeakRate: 1e-3}))
		pacer := stream.Pacer{Limiter: outbound.Observe(queue.New(b, queue.Config{}), "link", func(context.Context, outbound.Event) {})}
		level := func(want float64) {
			t.Helper()
			if s, err := b.State(t.Context()); err != nil || s.Level < want-0.1 || s.Level > want {
				t.Errorf("level %g, want %g, %v", s.Level, want, err)
			}
		}
		var all bytes.Buffer
		w := must(pacer.Writer(t.Context(), &all, 5))
		if n, err := w.Write([]byte("12345")); n != 5 || err != nil || all.String() != "12345" {
			t.Errorf("%d, %v, %s", n, err, &all)
		}
		level(5)
		b = outbound.Must(outbound.NewBucket("link", outbound.Limit{Capacity: 1000, LeakRate: 1000}))
		w, _ = stream.Pacer{Limiter: queue.New(b, queue.Config{})}.Writer(t.Context(), new(partial), 0)
		if n, err := w.Write([]byte("1234567")); n != 3 || err != io.ErrShortWrite {
			t.Errorf("%d, %v", n, err)
		}
		level(3)
		r, _ := stream.Pacer{Limiter: queue.New(b, queue.Config{})}.Reader(t.Context(), io.NopCloser(strings.NewReader("12")), 0)
		if got, err := io.ReadAll(r); string(got) != "12" || err != nil || r.Close() != nil {
			t.Errorf("%s, %v", got, err)
		}
		level(5)
	})
}

// What cannot work is an error at the start, or of the first read.
func TestStream_InvalidIsAnError(t *testing.T) {
	_, pacer := link()
	for _, p := range []stream.Pacer{{}, {Limiter: pacer.Limiter, Unit: -1}, {Limiter: pacer.Limiter, Unit: 4}} {
		r, err := p.Reader(t.Context(), zero{}, 1)
		w, same := p.Writer(t.Context(), io.Discard, 1)
		errorIf(t, !errors.Is(err, outbound.ErrInvalid) || !errors.Is(same, outbound.ErrInvalid) || r != nil || w != nil,
			"%v %v %v %v", r, err, w, same)
	}
	fast := queue.New(outbound.Must(outbound.NewBucket("fast", outbound.PerSecond(1_000_000))), queue.Config{})
	_, err := (stream.Pacer{Limiter: fast}).Reader(t.Context(), zero{}, 1)
	errorIf(t, !errors.Is(err, outbound.ErrInvalid) || !strings.Contains(err.Error(), "Burst"), "%v", err)
	_, err = (stream.Pacer{Limiter: queue.New(nil, queue.Config{})}).Writer(t.Context(), io.Discard, 1)
	errorIf(t, !errors.Is(err, outbound.ErrInvalid), "%v", err)
	ctx, cancel := context.WithCancel(t.Context())
	r := must(stream.Pacer{Limiter: outbound.Unlimited{}}.Reader(ctx, zeros(1), 1))
	cancel()
	n, err := r.Read(make([]byte, 2))
	errorIf(t, n != 0 || err != context.Canceled, "%d, %v", n, err)
}
