package retry

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// RoundTripper tries requests of an [http.Client] again, by a client of [NewClient]:
//
//	client := &http.Client{Transport: &retry.RoundTripper{Client: retry.NewClient(t)}}
//
// Unlike the one of [retryablehttp.Client.StandardClient] it neither changes the request nor
// reads its body into memory, and closes the body on every path. It leaves redirects to the
// http.Client, so that each hop is tried again by itself and a CheckRedirect counts. It sends
// a body without a GetBody once. The last response comes back as it is, also if it is a
// refusal or a failure; see the package's notes on SDKs. If the Client has a CheckRetry of
// your own, an [*Error] comes instead when a bound of [Config] is reached: retryablehttp has
// closed the response by then.
//
// A RoundTripper remembers each request that it gives up after more than one attempt. An SDK
// that tries again by itself and sends the same request once more gets an [*Error] at once:
// that takes no place in a bucket, counts as no attempt and prolongs nothing. The
// RoundTripper forgets the request 30 s after the time that the API has asked for, which
// counts as far as [Config] lets a request wait. After a failure it forgets the request after
// RetryWaitMax of the Client. A program that sends it then has all attempts anew. The same
// request has the same method, length and URL, and its URL and its Header are the same
// objects in memory: one that was cloned or made anew is another.
//
// A RoundTripper is safe for concurrent use. Do not change Client once it is in use.
type RoundTripper struct {
	// Client is one of NewClient. nil: all requests fail with outbound.ErrNil.
	Client *retryablehttp.Client

	givenUp givenUp
}

// RoundTrip sends the request, and again where that helps. It returns an [*Error] for a
// request that has no last response or that comes again too soon, or the context's own error
// if the context ends during a pause.
func (t *RoundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	client := t.Client
	if client == nil {
		client = NewClient(nil)
	}
	if err := t.givenUp.sentAgain(req); err != nil {
		closeBody(req.Body)
		return nil, err
	}
	r := &request{oneHop: true, parent: req.Context(), replay: replayable(req)}
	r.ctx = context.WithValue(r.parent, requestKey{}, r)
	own := &retryablehttp.Request{Request: req.WithContext(r.ctx)}
	bodies := &bodies{req: req}
	if req.GetBody != nil && req.Body != nil && req.Body != http.NoBody {
		if err := own.SetBody(retryablehttp.ReaderFunc(bodies.next)); err != nil {
			closeBody(req.Body)
			return nil, err
		}
		own.ContentLength = req.ContentLength // SetBody has guessed it
		// The client's own http.Client would call GetBody for the next hop, which it does not
		// make, and leave that body open. Base gets the function again.
		own.GetBody, r.getBody = nil, req.GetBody
	}
	resp, err := client.Do(own)
	if bodies.err != nil { // retryablehttp returns it as it is
		err = r.unread(bodies.err)
	}
	t.givenUp.remember(req, r, err)
	if r.refusedFirst(err) {
		resp, err := transport.TooManyRequests(req, err)
		if err == nil {
			forbidRetry(resp)
		}
		return resp, err
	}
	if err != nil {
		return nil, err // a GetBody that fails comes with the last response, already closed
	}
	return resp, nil
}

// refusedFirst reports whether the API has refused the request, and now the limiter does that for
// it.
func (r *request) refusedFirst(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end != nil && errors.Is(err, outbound.ErrThrottled) && (r.limited != nil || r.early > 0) && r.throttled > 0 && r.parent.Err() == nil
}

// CloseIdleConnections closes those of the transport's Base, if Base has such a method.
func (t *RoundTripper) CloseIdleConnections() {
	if t.Client == nil || t.Client.HTTPClient == nil {
		return
	}
	if h, ok := t.Client.HTTPClient.Transport.(*redirects); ok {
		h.transport.CloseIdleConnections()
		return
	}
	t.Client.HTTPClient.CloseIdleConnections()
}

// bodies gives each attempt its body: the first attempt gets the request's own, which it
// closes.
type bodies struct {
	req *http.Request
	n   int
	err error // of GetBody
}

func (b *bodies) next() (body io.Reader, err error) {
	b.n++
	switch b.n {
	case 1: // SetBody measures it
		return http.NoBody, nil
	case 2:
		return b.req.Body, nil
	}
	body, b.err = b.req.GetBody()
	return body, b.err
}

var _ http.RoundTripper = (*RoundTripper)(nil)
