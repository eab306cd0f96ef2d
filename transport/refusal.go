package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/dripfeed/dripfeed/outbound"
)

// TooManyRequests turns an [*outbound.ThrottledError] into a response 429 with a Retry-After, for
// the field OnRefusal. Clients that retry by the status then retry when the call can be admitted.
// go-retryablehttp is one: it retries errors blindly, and a status as the response asks.
// Retry-After is in whole seconds, rounded up and at least 1, even if the time is unknown. The body
// is JSON that SDKs read as their API's own: the error's text in message and in error.message, the
// seconds in retry_after. TooManyRequests returns any other error as it is.
//
// If transports are nested, give it to the outermost only: to those around it, the response would
// look like the API's.
func TooManyRequests(req *http.Request, err error) (*http.Response, error) {
	var full *outbound.ThrottledError
	if !errors.As(err, &full) {
		return nil, err
	}
	seconds := max(1, int64(math.Ceil(full.RetryAfter.Seconds())))
	text, _ := json.Marshal(map[string]any{ // cannot fail
		"message":     err.Error(),
		"error":       map[string]string{"message": err.Error()},
		"retry_after": seconds, // Discord's clients look only here
	})
	resp := &http.Response{
		Status:     "429 Too Many Requests",
		StatusCode: http.StatusTooManyRequests,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Retry-After":  {strconv.FormatInt(seconds, 10)},
		},
		Body:          io.NopCloser(bytes.NewReader(text)),
		ContentLength: int64(len(text)),
		Request:       req,
	}
	if req != nil && req.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp, nil
}
