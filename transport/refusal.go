package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// TooManyRequests turns an [*outbound.ThrottledError] into a response 429 with a
// Retry-After, for the field OnRefusal. Clients that retry by the status then
// come back when there is room, as go-retryablehttp does, which retries errors
// blindly. Retry-After is in whole seconds, rounded up and at least 1, also
// where the time is not known. The body is JSON that SDKs read as their API's own:
// the error's text in message and in error.message, the seconds in retry_after.
// Any other error is returned as it is.
//
// It belongs to the outermost of several transports in a row: to those around
// it, the response would look like the API's.
func TooManyRequests(req *http.Request, err error) (*http.Response, error) {
	var full *outbound.ThrottledError
	if !errors.As(err, &full) {
		return nil, err
	}
	seconds := full.RetryAfter / time.Second
	if full.RetryAfter%time.Second > 0 {
		seconds++
	}
	seconds = max(1, seconds)
	var body struct {
		Message string `json:"message"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
		RetryAfter int64 `json:"retry_after"` // in which Discord's clients look alone
	}
	body.Message, body.Error.Message, body.RetryAfter = err.Error(), err.Error(), int64(seconds)
	text, _ := json.Marshal(body) // cannot fail
	resp := &http.Response{
		Status:     "429 Too Many Requests",
		StatusCode: http.StatusTooManyRequests,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Retry-After":  {strconv.FormatInt(int64(seconds), 10)},
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
