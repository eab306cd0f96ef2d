package retry

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// drain reads at most maxDrain bytes of a response that nobody wants, for at most drainFor,
// so that its connection can be used again. retryablehttp reads 4 KiB, which is less than
// many an error page, and for as long as that takes.
const (
	maxDrain = 64 << 10
	drainFor = time.Second
)

// rest is the body of a response that nobody wants any more. Close reads on and closes it,
// once. To retryablehttp, which reads before it closes, the body is empty.
type rest struct {
	io.ReadCloser
	cancel func() // ends its request
	once   sync.Once
	err    error
}

func (b *rest) Read([]byte) (int, error) { return 0, io.EOF }

func (b *rest) Close() error {
	b.once.Do(func() { b.err = drain(b.ReadCloser, b.cancel) })
	return b.err
}

// drain reads on and closes the body. If the body stalls, cancel ends that: the reader that
// unpacks net/http's gzip cannot be closed while it waits for its first bytes.
func drain(body io.ReadCloser, cancel func()) error {
	if body == nil {
		return nil
	}
	end := make(chan struct{})
	go func() {
		defer close(end)
		defer func() { _ = recover() }() // a reader that panics has no end
		_, _ = io.CopyN(io.Discard, body, maxDrain)
	}()
	timer := time.NewTimer(drainFor)
	defer timer.Stop()
	select {
	case <-end:
	case <-timer.C:
		if cancel != nil {
			cancel()
		}
	}
	return body.Close()
}

// cancelAtEnd is a body that cancels its request's context when it ends.
type cancelAtEnd struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelAtEnd) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.cancel()
	}
	return n, err
}

func (b *cancelAtEnd) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

func closeBody(body io.ReadCloser) {
	if body != nil {
		_ = body.Close()
	}
}

// giveUp is the ErrorHandler: the caller never gets both a response and an error.
func giveUp(resp *http.Response, err error, rounds int) (*http.Response, error) {
	if err == nil && resp != nil && resp.Request != nil {
		if r := requestOf(resp.Request.Context()); r != nil && r.oneHop {
			if rounds > 1 { // RetryMax bounds them
				forbidRetry(resp)
			}
			return resp, nil
		}
	}
	if resp != nil && resp.Body != nil {
		var cancel func()
		if resp.Request != nil {
			if r := requestOf(resp.Request.Context()); r != nil {
				cancel = r.cancelFunc()
			}
		}
		_ = drain(resp.Body, cancel)
	}
	return nil, finalError(resp, err, rounds)
}

func statusOf(resp *http.Response) int {
	if resp == nil {
		return 0
	}
	return resp.StatusCode
}
