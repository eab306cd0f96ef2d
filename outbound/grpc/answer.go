package grpc

import (
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// statuses are those of HTTP by the code of gRPC, as google/rpc/code.proto has them. Unknown and
// Internal are 503, because grpc-go returns them for a gateway's response without a grpc-status.
var statuses = [...]int{
	codes.OK: 200, codes.Unknown: 503, codes.InvalidArgument: 400, codes.NotFound: 404, codes.AlreadyExists: 409,
	codes.PermissionDenied: 403, codes.ResourceExhausted: 429, codes.FailedPrecondition: 400, codes.Aborted: 409,
	codes.OutOfRange: 400, codes.Unimplemented: 501, codes.Internal: 503, codes.Unavailable: 503, codes.DataLoss: 500,
	codes.Unauthenticated: 401,
}

// response returns the response of HTTP that says the same as the end of an attempt, or nil if the
// API has not answered.
func response(err error, md ...metadata.MD) *http.Response {
	s := status.Convert(err)
	code := s.Code()
	if int64(code) >= int64(len(statuses)) {
		code = codes.Unknown
	}
	resp := &http.Response{StatusCode: statuses[code], Header: http.Header{}}
	for _, md := range md {
		for name, values := range md {
			name = textproto.CanonicalMIMEHeaderKey(name)
			resp.Header[name] = append(resp.Header[name], values...)
		}
	}
	if err == nil {
		return resp
	}
	refused := resp.Header.Get("X-Envoy-Ratelimited") != ""
	wait := resp.Header["Grpc-Retry-Pushback-Ms"]
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.RetryInfo:
			if d := detail.GetRetryDelay().AsDuration(); d > 0 {
				wait = append(wait, strconv.FormatInt(int64((d-1)/time.Millisecond)+1, 10))
			}
		case *errdetails.QuotaFailure:
			refused = refused || code == codes.Unavailable
		}
	}
	resp.Header["Retry-After-Ms"] = append(resp.Header["Retry-After-Ms"], wait...)
	text := s.Message()
	switch {
	case refused, text == "local_rate_limited": // Envoy's
		resp.StatusCode = http.StatusTooManyRequests
	case code == codes.Canceled, code == codes.DeadlineExceeded:
		return nil
	case code == codes.ResourceExhausted && len(wait) == 0 && isLocal(text):
		return nil
	case code == codes.Unavailable && calm(text):
		resp.StatusCode = http.StatusTooManyRequests
	default: // a gateway's response, which is not one of gRPC
		var n int
		if _, err := fmt.Sscanf(text, "unexpected HTTP status code received from server: %d ", &n); err == nil && n >= 400 {
			resp.StatusCode = n
		}
	}
	return resp
}

// isLocal reports whether gRPC itself has refused a message because of its size.
func isLocal(text string) bool {
	return strings.Contains(text, "larger than max") || strings.Contains(text, "message too large")
}

// calm reports whether the server has closed the connection because of too many calls, and not
// because of too many pings.
func calm(text string) bool {
	return strings.Contains(text, "received prior goaway: code: ENHANCE_YOUR_CALM") && !strings.Contains(text, "too_many_pings")
}
