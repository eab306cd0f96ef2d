package retry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// maxGivenUp is how many requests a RoundTripper remembers at most.
const maxGivenUp = 256

// givenUp remembers the requests that a RoundTripper has given up after several attempts. An
// SDK that sends the very same request again does not know of these attempts, and would
// multiply them. The zero value is empty.
type givenUp struct {
	some atomic.Bool // it is not empty; if false, sentAgain needs no lock

	mu   sync.Mutex
	ends map[identity]abandoned
}

// identity tells a request that is sent again from one that was made anew and looks the same.
// A request that is sent again may have a new context and body, and an http.Client with a
// Timeout copies it, but its URL and its header are the same objects. A cookie jar changes
// the content of the header. A program that changes the URL asks for something else.
type identity struct {
	method  string
	url     *url.URL
	address url.URL // its content
	header  uintptr
	length  int64 // of the body
}

func identityOf(req *http.Request) identity {
	return identity{req.Method, req.URL, *req.URL, reflect.ValueOf(req.Header).Pointer(), req.ContentLength}
}

// abandoned is a request that was given up.
type abandoned struct {
	header http.Header // held, so that no other header gets its address
	until  time.Time   // a request that comes before gets why
	why    *Error
}

// sentAgain returns the error for a request that was given up a moment ago, or nil.
func (g *givenUp) sentAgain(req *http.Request) error {
	if !g.some.Load() || req.URL == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.forget(now)
	last, ok := g.ends[identityOf(req)]
	if !ok {
		return nil
	}
	e := *last.why
	e.Err = tooSoon(e.Err, last.until.Sub(now))
	return &e
}

// remember notes that a request has ended, with this error if there is one. It leaves out a
// request that went out once: there is nothing to multiply, and where the SDK is to do all
// tries each of them is such a request.
func (g *givenUp) remember(req *http.Request, r *request, err error) {
	r.mu.Lock()
	until, why, attempts := r.until, r.endError, r.attempts
	r.mu.Unlock()
	if attempts < 2 || until.IsZero() || errors.Is(err, context.Canceled) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(time.Now())
	if g.ends == nil {
		g.ends = map[identity]abandoned{}
	}
	for other := range g.ends {
		if len(g.ends) < maxGivenUp {
			break
		}
		delete(g.ends, other)
	}
	why.Attempts, why.Throttled, why.Failures = 0, 0, 0 // these belong to the request that comes next
	g.ends[identityOf(req)] = abandoned{req.Header, until, why}
	g.some.Store(true)
}

// forget drops what is over. The caller holds g.mu.
func (g *givenUp) forget(now time.Time) {
	for id, last := range g.ends {
		if !now.Before(last.until) {
			delete(g.ends, id)
		}
	}
	g.some.Store(len(g.ends) > 0)
}

var errTooSoon = errors.New("sent again too soon after it was given up")

// tooSoon returns why a request is not sent again, with the time to come back if why has one.
func tooSoon(why error, left time.Duration) error {
	var full *outbound.ThrottledError
	switch {
	case why == nil: // the status says it
		return errTooSoon
	case errors.As(why, &full):
		later := *full
		later.RetryAfter = left
		why = &later
	}
	return fmt.Errorf("%w: %w", errTooSoon, why)
}
