package retry

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/hashicorp/go-retryablehttp"
)

// hands reports whether the last response of a request is handed on, also if it is a
// refusal or a failure: to a RoundTripper's caller, who reads it as the API's own word,
// and to whoever wants it by retryablehttp's handler.
func (p *policy) returnsResponse(r *request) bool {
	return r.oneHop || reflect.ValueOf(p.client.ErrorHandler).Pointer() == passthrough
}

// passthrough tells the handler: functions cannot be compared.
var passthrough = reflect.ValueOf(retryablehttp.PassthroughErrorHandler).Pointer()

// announced reports whether the request says that its sender, an AWS SDK, sends it up to
// so many times by itself, as "attempt=1; max=3". One that knows no bound
// says no max.
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

// spent tells the SDKs that listen that a request was tried again as often as it may be.
// They would begin anew.
func forbidRetry(resp *http.Response) {
	resp.Header = resp.Header.Clone() // which may be a cache's
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("X-Should-Retry", "false") // of OpenAI, Anthropic and others
}
