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

// attempt is one request that was admitted, and the [outbound.Call] by which
// users reach its permit. A permit is not safe for concurrent use, but the
// body that ends it may be closed while it is read, or by another goroutine
// than the one that settles.
type attempt struct {
	maxHold time.Duration

	mu     sync.Mutex // protects what follows
	permit outbound.Permit
	said   bool            // a user has said how the API answered
	stop   func() bool     // stops waiting for the end of the request's context; nil: nobody waits
	lost   runtime.Cleanup // stops it if the garbage collector finds the attempt first
}

func (a *attempt) Settle(used outbound.Cost) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.permit.Settle(used)
}

func (a *attempt) Answered(answer outbound.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = a.said || answer.Kind != outbound.AnswerLeft
	answer.Wait = min(answer.Wait, a.maxHold)
	if answer.MaxWait <= 0 || answer.MaxWait > a.maxHold {
		answer.MaxWait = a.maxHold
	}
	a.permit.Answered(answer)
}

func (a *attempt) Done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = true
	if a.stop != nil {
		a.stop()
		a.stop = nil
		a.lost.Stop()
	}
	a.permit.Done()
}

func (a *attempt) judged() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said
}

// until returns the response's body, which ends the attempt where it ends itself, or
// when ctx is done. Without a body the attempt ends at once.
func (a *attempt) until(ctx context.Context, resp *http.Response) io.ReadCloser {
	rc := resp.Body
	if bodiless(resp) {
		a.Done()
		return rc
	}
	b := body{rc, a}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// Its context is that of the handshake. The connection outlives it.
		if w, ok := rc.(io.Writer); ok {
			return &upgraded{b, w}
		}
	}
	a.endWith(ctx)
	return &b
}

// bodiless reports whether a response has no body, so that nobody has to close any.
// Over HTTP/2 such a response comes with a Body all the same. A length of 0 tells
// nothing by itself: fakes leave it out.
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

// endWith ends the attempt when ctx is done, so that a body that nobody closes keeps
// its place no longer. The context refers to the attempt weakly: it may live much
// longer, and must not keep a forgotten body's place from the garbage collector, which
// leaves nothing with the context either.
func (a *attempt) endWith(ctx context.Context) {
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
	a.lost = runtime.AddCleanup(a, func(stop func() bool) { stop() }, a.stop)
}

// body ends an attempt at its end, at the first error or when it is closed.
type body struct {
	io.ReadCloser
	attempt *attempt
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.attempt.Done()
	}
	return n, err
}

func (b *body) Close() error {
	defer b.attempt.Done()
	return b.ReadCloser.Close()
}

// upgraded is the body of a 101 Switching Protocols response, which is a
// connection. An EOF does not end it: the other side has nothing more to say,
// but this one may.
type upgraded struct {
	body
	io.Writer
}

func (u *upgraded) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		u.attempt.Done()
	}
	return n, err
}

// CloseWrite closes half of the connection, if the body below can.
func (u *upgraded) CloseWrite() error {
	if c, ok := u.Writer.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return http.ErrNotSupported
}
