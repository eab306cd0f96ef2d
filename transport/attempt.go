package transport

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/dripfeed/dripfeed/outbound"
)

// attempt is one request that was admitted, and the [outbound.Call] of the permit that users get. A
// permit is not safe for concurrent use, but one goroutine may close the body, which ends the
// permit, while another reads the body or settles the call.
//
// It is also the response's body, if it ends with that.
type attempt struct {
	io.ReadCloser // the body below
	maxHold       time.Duration

	mu       sync.Mutex // protects what follows
	permit   outbound.Permit
	answered bool            // the program has reported how the API answered, or the call is over
	stop     func() bool     // stops waiting for the end of the request's context, or nil
	cleanup  runtime.Cleanup // calls stop if the garbage collector finds the attempt first
}

func (a *attempt) Settle(used outbound.Cost) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.permit.Settle(used)
}

func (a *attempt) Answered(answer outbound.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch answer.Kind {
	case outbound.AnswerRemaining, outbound.AnswerQuota, outbound.AnswerSent:
	default:
		a.answered = true
	}
	answer.Wait = min(answer.Wait, a.maxHold)
	if answer.MaxWait <= 0 || answer.MaxWait > a.maxHold {
		answer.MaxWait = a.maxHold
	}
	a.permit.Answered(answer)
}

// State is that of the permit.
func (a *attempt) State() outbound.State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.permit.State()
}

func (a *attempt) Done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered = true
	if a.stop != nil {
		a.stop()
		a.stop = nil
		a.cleanup.Stop()
	}
	a.permit.Done()
}

// fail ends an attempt if RoundTrip returns no response. A nil resp means that there was none.
func (a *attempt) fail(resp *http.Response) {
	if resp == nil {
		a.Answered(outbound.Answer{})
	}
	a.Done()
}

// judged reports whether the transport need not judge the response.
func (a *attempt) judged() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answered
}

// endWithBody wraps the response's body, so that the attempt ends when the body does, or when ctx
// is done. Without a body the attempt ends immediately.
func (a *attempt) endWithBody(ctx context.Context, resp *http.Response) {
	if bodiless(resp) {
		a.Done()
		return
	}
	if w, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &upgraded{w, a.Done} // ctx is that of the handshake, and the connection outlives it
		return
	}
	a.endWithContext(ctx)
	a.ReadCloser, resp.Body = resp.Body, a
}

// Read ends the attempt at the body's end and at the first error.
func (a *attempt) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil {
		a.Done()
	}
	return n, err
}

// Close ends the attempt.
func (a *attempt) Close() error {
	defer a.Done()
	return a.ReadCloser.Close()
}

// bodiless reports whether a response has no body to close. Over HTTP/2 such a response comes with
// a Body all the same. A length of 0 proves nothing by itself: fakes leave it out.
func bodiless(resp *http.Response) bool {
	switch {
	case resp.Body == nil || resp.Body == http.NoBody:
		return true
	case resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified:
		return true
	case resp.Request != nil && resp.Request.Method == http.MethodHead:
		return true
	}
	return resp.ProtoMajor > 1 && resp.ContentLength == 0
}

// endWithContext ends the attempt when ctx is done, so that an unclosed body is no longer in
// flight. The context refers to the attempt weakly: it may live much longer, and must let the
// garbage collector find a forgotten body. The cleanup then leaves nothing behind in the context.
func (a *attempt) endWithContext(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Done() == nil || !a.permit.Pending() {
		return
	}
	w := weak.Make(a)
	a.stop = context.AfterFunc(ctx, func() {
		if a := w.Value(); a != nil {
			a.Done()
		}
	})
	a.cleanup = runtime.AddCleanup(a, func(stop func() bool) { stop() }, a.stop)
}

// upgraded is the body of a 101 Switching Protocols response, which is a connection. An EOF does
// not end it: this side may still send.
type upgraded struct {
	io.ReadWriteCloser
	end func()
}

func (u *upgraded) Read(p []byte) (int, error) {
	n, err := u.ReadWriteCloser.Read(p)
	if err != nil && err != io.EOF {
		u.end()
	}
	return n, err
}

func (u *upgraded) Close() error {
	defer u.end()
	return u.ReadWriteCloser.Close()
}

// CloseWrite closes half of the connection, if the body below can.
func (u *upgraded) CloseWrite() error {
	if c, ok := u.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return http.ErrNotSupported
}
