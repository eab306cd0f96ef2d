package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// TooManyRequests turns an [*outbound.ThrottledError] into a response 429 with a Retry-After, for
// the field OnRefusal. Clients that retry by the status then retry when the call can be admitted.
// go-retryablehttp is one: it retries errors blindly, and a status as the response asks.
// Retry-After is in whole seconds, rounded up and at least 1, even if the time is unknown. The body
// is JSON that SDKs read as their API's own: the error's text in message and in error.message, the
// seconds in retry_after.
//
// If the request's context ends before that time, the response has X-Should-Retry, which is false.
// The SDKs of OpenAI and Anthropic then return the 429, instead of sleeping until the context ends.
// TooManyRequests returns the error as it is if the context is over, and any other error.
//
// If transports are nested, give it to the outermost only: to those around it, the response would
// look like the API's.
func TooManyRequests(req *http.Request, err error) (*http.Response, error) {
	var full *outbound.ThrottledError
	ctx := context.Background()
	if req != nil {
		ctx = req.Context()
	}
	if !errors.As(err, &full) || ctx.Err() != nil {
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
	if end, bounded := ctx.Deadline(); bounded && time.Until(end) < full.RetryAfter {
		resp.Header.Set("X-Should-Retry", "false")
	}
	if req != nil && req.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp, nil
}
