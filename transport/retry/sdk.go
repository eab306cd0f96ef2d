package retry

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/hashicorp/go-retryablehttp"
)

// returnsResponse reports whether the last response of a request goes to the caller, also if
// it is a refusal or a failure: to the caller of a RoundTripper, who reads it as the API's
// own word, and to a caller who has asked for it by retryablehttp's handler.
func (p *policy) returnsResponse(r *request) bool {
	return r.oneHop || reflect.ValueOf(p.client.ErrorHandler).Pointer() == passthrough
}

// passthrough identifies the handler: functions cannot be compared.
var passthrough = reflect.ValueOf(retryablehttp.PassthroughErrorHandler).Pointer()

// announcesRetries reports whether the request says that its sender, an AWS SDK, sends it
// several times by itself, as "attempt=1; max=3". A sender that knows no bound says no max.
func announcesRetries(req *http.Request) bool {
	attempt := false
	for _, part := range strings.Split(req.Header.Get("Amz-Sdk-Request"), ";") {
		part = strings.TrimSpace(part)
		if most, ok := strings.CutPrefix(part, "max="); ok {
			n, err := strconv.Atoi(most)
			return err == nil && n > 1
		}
		attempt = attempt || strings.HasPrefix(part, "attempt=")
	}
	return attempt
}

// forbidRetry tells the SDKs that heed it that a request was tried again as often as it may
// be. They would begin anew.
func forbidRetry(resp *http.Response) {
	resp.Header = resp.Header.Clone() // it may be a cache's
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("X-Should-Retry", "false") // OpenAI's, Anthropic's and others heed it
}
