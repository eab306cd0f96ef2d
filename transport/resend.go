package transport

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// unpaid is how often Base may send a request again although the limiter refuses its cost: a bucket
// alone does not wait. It is as often as net/http does so after REFUSED_STREAM, which says that the
// API has processed nothing. Each takes a slot: another call may have that of the earlier send.
const unpaid = 8

var slotOnly = outbound.Cost{outbound.Free, outbound.Free, outbound.Free, outbound.Free}

// resend makes the limiter admit what Base sends again by itself, before it does, so that an API
// which never processes a request gets it at the limiter's pace.
type resend struct {
	outer   *resend         // of the transport around, or nil
	ctx     context.Context // of the request
	a       *attempt
	limiter outbound.Limiter
	cost    func() outbound.Cost
	since   atomic.Int64 // when the last permit was acquired, after start
	wrote   atomic.Bool  // the headers, since again was called
	over2   atomic.Bool  // HTTP/2 or 3
	unpaid  atomic.Int32
}

// resendKey is the key of a context's innermost *resend.
type resendKey struct{}

// resendOf returns that of the transport around, or nil.
func resendOf(ctx context.Context) *resend {
	r, _ := ctx.Value(resendKey{}).(*resend)
	return r
}

// withResend returns a request whose connections r follows. HTTP/1 waits before it takes a
// connection: there may be few, and the API closes idle ones. HTTP/2 waits with one: before, it
// holds the lock of all its connections.
func withResend(req *http.Request, r *resend) *http.Request {
	return req.WithContext(httptrace.WithClientTrace(context.WithValue(req.Context(), resendKey{}, r), &httptrace.ClientTrace{
		GetConn: func(string) {
			if !r.over2.Load() {
				r.again()
			}
		},
		GotConn: func(httptrace.GotConnInfo) { r.again() },
		WroteHeaderField: func(name string, _ []string) {
			if strings.HasPrefix(name, ":") { // as :path, which HTTP/1 does not have
				r.over2.Store(true)
			}
		},
		WroteHeaders: func() {
			r.wrote.Store(true)
			if late := time.Since(start) - time.Duration(r.since.Load()); late > notable {
				go r.a.Answered(outbound.Answer{Kind: outbound.AnswerSent, Wait: late}) // HTTP/2 holds a lock here, and a store may be far away
			}
		},
	}))
}

// start is when this process began, and notable how late a request is sent that does not find a
// connection: a bucket ignores less.
var start = time.Now()

const notable = 10 * time.Millisecond

// again waits for a new permit if the request has been sent. The one before ends first, because the
// new one may wait for it. The transport around does the same before, as with the first permits.
func (r *resend) again() {
	if r == nil || !r.wrote.Swap(false) {
		return
	}
	r.a.mu.Lock()
	r.a.permit.Failed() // no success
	r.a.mu.Unlock()
	r.outer.again()
	cost := r.cost()
	for {
		var p outbound.Permit
		err := p.AcquireIn(r.ctx, r.limiter, cost)
		again := err != nil && r.unpaid.Add(1) <= unpaid
		if again {
			err = p.AcquireIn(r.ctx, r.limiter, slotOnly)
		}
		if err == nil {
			r.since.Store(int64(time.Since(start)))
			r.a.mu.Lock()
			defer r.a.mu.Unlock()
			if r.a.permit = p; r.a.answered { // the request has ended meanwhile
				r.a.permit.Done()
			}
			return
		}
		pause := time.Second
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if _, down := errors.AsType[*outbound.StoreError](err); again && !ok && !down { // as of a queue that is closed
			return
		}
		if ok && full.RetryAfter > 0 {
			pause = full.RetryAfter
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-r.ctx.Done(): // Base returns its error
			timer.Stop()
			return
		}
	}
}

// resends reports whether Base keeps connections, and so may send a request again.
func (t *Transport) resends() bool {
	for rt := t.base(); rt != nil; {
		if _, ok := rt.(interface{ CloseIdleConnections() }); ok {
			return true
		}
		around, ok := rt.(interface{ Unwrap() http.RoundTripper })
		if !ok {
			return false
		}
		rt = around.Unwrap()
	}
	return false
}
