package transport

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// ErrCalm is the error of a request, or of reading its response's body, that the API has ended over
// HTTP/2 with the code ENHANCE_YOUR_CALM, by a RST_STREAM or a GOAWAY. The cause is in the error as
// well. The API may have carried out a part of the request. REFUSED_STREAM, INTERNAL_ERROR and a
// GOAWAY with NO_ERROR are no refusals: they concern streams, failures and connections.
var ErrCalm = errors.New("transport: the API asks for fewer requests")

// calm adds ErrCalm to an error of HTTP/2 with the code ENHANCE_YOUR_CALM. It goes by the text: the
// types of net/http are unexported, and those of golang.org/x/net are in another module. The API's
// own words, the debug data, do not count.
func calm(err error) error {
	if err == nil || err == io.EOF || errors.Is(err, ErrCalm) {
		return err
	}
	text, _, _ := strings.Cut(err.Error(), ", debug=")
	before, _, found := strings.Cut(text, "ENHANCE_YOUR_CALM")
	_, stream, reset := strings.Cut(before, "stream error: stream ID ")
	switch {
	case !found:
	case reset && strings.HasSuffix(stream, "; "), // RST_STREAM
		strings.HasSuffix(before, "GOAWAY from server ErrCode:"), // GOAWAY before the API has seen the request
		strings.Contains(before, "server sent GOAWAY") && strings.HasSuffix(before, "ErrCode="):
		return fmt.Errorf("%w: %w", ErrCalm, err)
	}
	return err
}

// calmed reports to the call that the API has refused it with ErrCalm, if err is one.
func (t *Transport) calmed(err error, c outbound.Call) {
	if errors.Is(err, ErrCalm) {
		t.applyRefusal(&profile.Signal{Throttled: true, Reason: profile.Rate}, reported{}, c)
	}
}

// calmBody is the body of a response over HTTP/2, which the API may end with ENHANCE_YOUR_CALM.
type calmBody struct {
	io.ReadCloser
	t    *Transport
	call outbound.Call // or nil once it has learned of it
}

func (b *calmBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		if err = calm(err); b.call != nil {
			b.t.calmed(err, b.call)
			b.call = nil // once
		}
	}
	return n, err
}

// watch makes the call learn of an ENHANCE_YOUR_CALM in the response's body. Either a or permit has
// the call.
func (t *Transport) watch(resp *http.Response, permit *outbound.Permit, a *attempt) {
	if resp.ProtoMajor != 2 || bodiless(resp) {
		return
	}
	b := &calmBody{ReadCloser: resp.Body, t: t, call: a}
	if a == nil {
		b.call = onHeap(permit)
	}
	resp.Body = b
}
