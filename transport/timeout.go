package transport

import (
	"context"
	"io"
	"net/http"
	"time"
)

// ErrTimeout is the error of a request, or of reading its response's body, after
// [Transport.Timeout] has passed. It is also [context.DeadlineExceeded], and a [net.Error] with
// Timeout() true.
var ErrTimeout error = timeoutError{}

type timeoutError struct{}

func (timeoutError) Error() string {
	return "transport: Transport.Timeout has passed since the request was admitted"
}
func (timeoutError) Timeout() bool        { return true }
func (timeoutError) Temporary() bool      { return true }
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// sendWithin hands the request on to Base with a bound on the time to the end of the response's
// body. It sets sent to the context that has this bound.
func (t *Transport) sendWithin(req *http.Request, again *resend, sent *context.Context) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	*sent = ctx
	if again != nil {
		again.ctx = ctx
	}
	timer := time.AfterFunc(t.Timeout, func() { cancel(ErrTimeout) })
	end := func() {
		timer.Stop()
		cancel(nil)
	}
	returned := false
	defer func() {
		if !returned { // Base panics
			end()
		}
	}()
	resp, err := t.base().RoundTrip(req.WithContext(ctx))
	returned = true
	switch {
	case err != nil || resp == nil:
		err = timedOut(ctx, err)
		end()
	case resp.StatusCode == http.StatusSwitchingProtocols:
		timer.Stop() // the connection and its context outlive the request, until it is closed
		if conn, ok := resp.Body.(io.ReadWriteCloser); ok {
			resp.Body = &upgraded{conn, end}
		}
	case bodiless(resp):
		end()
	default:
		resp.Body = &timedBody{ReadCloser: resp.Body, ctx: ctx, end: end}
	}
	return resp, err
}

// timedOut returns ErrTimeout if err is due to it, and err otherwise.
func timedOut(ctx context.Context, err error) error {
	if err != nil && err != io.EOF && context.Cause(ctx) == ErrTimeout {
		return ErrTimeout
	}
	return err
}

// timedBody is a body that Transport.Timeout bounds.
type timedBody struct {
	io.ReadCloser
	ctx context.Context
	end func()
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = timedOut(b.ctx, err)
		b.end()
	}
	return n, err
}

func (b *timedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
