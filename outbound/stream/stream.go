// Package stream paces streams of bytes, such as the bodies of large uploads and downloads, by a
// limit on bytes.
//
//	bucket := outbound.Must(outbound.NewBucket("link", outbound.PerSecond(1_000_000).Burst(20_000)))
//	pacer := stream.Pacer{Limiter: queue.New(bucket, queue.Config{})}
//	body, err := pacer.Reader(ctx, file, size)
//
// The streams of a limiter share its limit: their chunks leave in the order of arrival. A chunk is
// one Read of the source, and at most what leaks in 10 ms, the capacity, and 32 KiB. So the bytes
// of each second are even if the limit has a Burst of 1 to 3 % of its rate. A chunk that no longer
// fits, after a Bucket.SetLimits or because of a Headroom, leaves in halves. A PerSecond without a
// Burst has a capacity of one byte. A fast limit needs a capacity of what leaks in a millisecond,
// or a stream does not begin.
//
// A stream charges each byte once, when it passes. A slow source takes no capacity while it pauses.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Pacer makes paced readers and writers.
type Pacer struct {
	// Limiter is a queue, or a limiter around one. Behind another limiter the chunks are of 32 KiB,
	// whatever its limits are, no deadline is foreseen, and a refused Read or Write may be repeated.
	Limiter outbound.Limiter
	// Unit is the index of the number of an [outbound.Cost] that counts bytes. The other numbers are
	// [outbound.Free].
	Unit int
}

// Reader returns a reader of r. Its Read reads a chunk, waits until the limiter admits what came,
// and returns it. If the limiter fails, Read returns that error, and the next Read returns the
// bytes. Close closes r if it is an [io.Closer].
//
// The length is the number of bytes. If it is zero or less, it is unknown. If the last of them
// would pass after the deadline of ctx, Reader reads nothing. Its error wraps a
// [*outbound.ThrottledError] and [context.DeadlineExceeded], as that of a Read that is late.
// Streams that begin later, and timers that are late, are not foreseen: leave some time. Reader
// makes one operation on the bucket, or some more if the length is a billion times the capacity.
func (p Pacer) Reader(ctx context.Context, r io.Reader, length int64) (io.ReadCloser, error) {
	s, err := p.start(ctx, length)
	if err != nil {
		return nil, err
	}
	return &reader{stream: s, source: r}, nil
}

// Writer returns a writer to w. Its length and its error are those of [Pacer.Reader]. Its Write
// waits for each chunk until the limiter admits it, and returns the charge of what w does not take.
func (p Pacer) Writer(ctx context.Context, w io.Writer, length int64) (io.Writer, error) {
	s, err := p.start(ctx, length)
	if err != nil {
		return nil, err
	}
	return &writer{stream: s, sink: w}, nil
}

type stream struct {
	Pacer
	ctx   context.Context
	chunk int // bytes
}

// start returns a stream whose chunks fit the limits, or why it cannot be in time.
func (p Pacer) start(ctx context.Context, length int64) (*stream, error) {
	s := &stream{p, ctx, 32 << 10}
	if p.Limiter == nil || p.Unit < 0 || p.Unit >= len(outbound.Cost{}) {
		return s, fmt.Errorf("stream: %w: Pacer with Limiter %T and Unit %d", outbound.ErrInvalid, p.Limiter, p.Unit)
	}
	q, ok := outbound.As[interface {
		ExplainLast(context.Context, outbound.Cost, int) (outbound.Explanation, error)
	}](p.Limiter)
	if !ok {
		return s, nil
	}
	each := max(1, 1+length/1e9) // a queue explains a billion calls
	e, err := q.ExplainLast(ctx, s.cost(int(each)), int(max(1, length/each)))
	for ; each > 1 && errors.Is(cmp.Or(err, e.Err), outbound.ErrTooLarge); each /= 2 { // then its time is a lower bound
		e, err = q.ExplainLast(ctx, s.cost(int(each/2)), 1e9)
	}
	for i := range e.States {
		if l := &e.States[i].Limit; l.Unit == p.Unit && l.LeakRate > 0 {
			if l.Capacity < l.LeakRate/1000 {
				return s, fmt.Errorf("stream: %w: limit %q of a millisecond or less, without a Burst", outbound.ErrInvalid, e.States[i].Label())
			}
			s.chunk = max(1, min(s.chunk, int(l.Capacity), int(l.LeakRate/100)))
		}
	}
	if end, ok := ctx.Deadline(); ok && err == nil && e.Wait > time.Until(end) {
		late := &outbound.ThrottledError{Key: e.Key, Limit: e.Limit}
		late.Late(ctx, time.Now())
		return s, fmt.Errorf("stream: %d bytes take %v: %w", length, e.Wait.Round(time.Millisecond), late)
	}
	return s, cmp.Or(err, e.Err)
}

// acquire waits for n bytes, or for as many halves less as fit, and returns how many they are.
func (s *stream) acquire(n int) (outbound.Permit, int, error) {
	for {
		permit, err := s.Limiter.Acquire(s.ctx, s.cost(n))
		if n == 1 || !errors.Is(err, outbound.ErrTooLarge) {
			return permit, n, err
		}
		n /= 2
		s.chunk = n
	}
}

// cost is what n bytes cost.
func (s *stream) cost(n int) outbound.Cost {
	c := outbound.Cost{outbound.Free, outbound.Free, outbound.Free, outbound.Free}
	c[s.Unit] = float64(n)
	return c
}

type reader struct {
	*stream
	source io.Reader
	left   []byte // read, and not admitted
	err    error  // of the source, after left
}

func (r *reader) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	p = p[:min(len(p), r.chunk)]
	if n = copy(p, r.left); n == 0 && r.err == nil {
		n, r.err = r.source.Read(p)
	}
	if n > 0 {
		permit, fits, err := r.acquire(n)
		if len(r.left) == 0 && (err != nil || fits < n) {
			r.left = slices.Clone(p[:n])
		}
		if err != nil {
			return 0, err
		}
		permit.Done()
		if r.left = r.left[min(fits, len(r.left)):]; len(r.left) > 0 {
			return fits, nil
		}
		n = fits
	}
	err, r.err = r.err, nil
	return n, err
}

// Close closes the source.
func (r *reader) Close() error {
	if c, ok := r.source.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

type writer struct {
	*stream
	sink io.Writer
}

func (w *writer) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		permit, n, refused := w.acquire(min(len(p), w.chunk))
		if refused != nil {
			return written, refused
		}
		chunk := p[:n]
		if n, err = w.sink.Write(chunk); n < len(chunk) {
			permit.Settle(w.cost(n))
			err = cmp.Or(err, io.ErrShortWrite)
		}
		permit.Done()
		written, p = written+n, p[n:]
	}
	return written, err
}
