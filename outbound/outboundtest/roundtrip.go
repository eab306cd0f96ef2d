package outboundtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
)

// RoundTrip carries the request to the API as if over an ideal network: it arrives immediately, and
// the response is complete as soon as the API has answered. Nothing is streamed, so the body of the
// request has been closed by then.
//
// If the context ends first, the error is its cause (context.Cause), as with http.Transport. If it
// ends before the call, the call never reaches the API. If it ends during the call, Next goes on in
// a goroutine of its own, and the call is in progress until Next returns. A panic of Next becomes
// the error; ServeHTTP's other panics reach the caller.
func (a *API) RoundTrip(req *http.Request) (*http.Response, error) {
	body := onceCloser(req.Body)
	handedOn := false
	defer func() {
		if !handedOn {
			body.Close()
		}
	}()
	if req.URL == nil {
		return nil, errors.New("outboundtest: a request without a URL")
	}
	ctx := req.Context()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}

	arrived := asArrived(req, body)
	rec := httptest.NewRecorder()
	arr := a.arrive(arrived) // here and not in the goroutine, so that calls arrive in order

	handedOn = true
	done := make(chan error, 1)
	go func() {
		err := errors.New("outboundtest: the handler called runtime.Goexit") // by runtime.Goexit
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("outboundtest: the handler panicked: %v", v)
			}
			body.Close()
			done <- err
		}()
		a.answer(rec, arrived, arr)
		err = nil
	}()
	select {
	case err := <-done:
		// If the answer comes at the same instant as the end of ctx, the end wins. Otherwise the result
		// of a caller that has given up would be random.
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		return response(rec, req), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// asArrived returns the request as a server would see it. It leaves the caller's as it
// is.
func asArrived(req *http.Request, body io.ReadCloser) *http.Request {
	r := req.Clone(req.Context())
	r.Method = cmp.Or(req.Method, http.MethodGet)
	r.Host = cmp.Or(req.Host, req.URL.Host)
	r.RequestURI = req.URL.RequestURI()
	r.URL.Scheme, r.URL.Host, r.URL.User, r.URL.Fragment, r.URL.RawFragment = "", "", nil, "", ""
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RemoteAddr = "192.0.2.1:1234" // an address for documentation
	r.Body, r.GetBody, r.Response = body, nil, nil
	if r.Header == nil {
		r.Header = http.Header{}
	}
	return r
}

// response returns the recorded answer as a client would see it.
func response(rec *httptest.ResponseRecorder, req *http.Request) *http.Response {
	res := rec.Result()
	res.Request = req
	res.ContentLength = int64(rec.Body.Len())
	switch {
	case req.Method == http.MethodHead:
		res.Body = http.NoBody // its length is that of the answer to a GET
	case res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified:
		res.Body, res.ContentLength = http.NoBody, 0
	}
	return res
}

// onceCloser lets a handler close the request's body and RoundTrip close it again,
// while its owner sees one Close. A nil body becomes an empty one.
func onceCloser(body io.ReadCloser) io.ReadCloser {
	if body == nil {
		return http.NoBody
	}
	return &closeOnce{Reader: body, close: sync.OnceValue(body.Close)}
}

type closeOnce struct {
	io.Reader
	close func() error
}

func (c *closeOnce) Close() error { return c.close() }
