package retry

import (
	"io"
	"time"
)

// A response that is not needed is read up to maxDrain bytes and for at most drainFor, so that its
// connection can be used again. retryablehttp reads 4 KiB, for as long as that takes.
const (
	maxDrain = 64 << 10
	drainFor = time.Second
)

// body is a response's body. It ends its request's context with itself.
type body struct {
	io.ReadCloser
	cancel func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.cancel()
	}
	return n, err
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// rest is the body of a response that is not needed if another attempt follows. To retryablehttp,
// which reads before it closes, it is empty. Close reads on and closes it.
type rest struct {
	io.ReadCloser
	cancel func() // ends its request, and so a body that stalls
}

func (r *rest) Read([]byte) (int, error) { return 0, io.EOF }

func (r *rest) Close() error {
	defer time.AfterFunc(drainFor, r.cancel).Stop()
	_, _ = io.CopyN(io.Discard, r.ReadCloser, maxDrain)
	return r.ReadCloser.Close()
}
