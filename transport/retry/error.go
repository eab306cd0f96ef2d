package retry

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// Error says how a request has ended, and after what. Its text has the URL without user,
// password, query and fragment, and each text in quotes up to its first ? or #: it may be a URL.
//
// If the limiter or the API refused the request in the end, [errors.As] finds the
// [*outbound.ThrottledError] with the time to come back. One for a refusal by the API has
// Held set, and the same Key as one by the limiter.
type Error struct {
	// Method and URL are the request's; the URL has the parts that the text has.
	Method, URL string
	// Attempts is how often the request went out. 0: never.
	Attempts int
	// Throttled is how many of the attempts the API has refused because of its limits.
	Throttled int
	// Failures is how many of the attempts, or trips to a store on the way, have failed.
	Failures int
	// StatusCode is that of the last response. 0: there was none.
	StatusCode int
	// Err is why the request ended. nil: because of the status.
	Err error
}

func (e *Error) Error() string {
	why := "no answer that helps"
	if e.Err != nil {
		why = redacted(e.Err.Error())
	}
	if e.StatusCode != 0 {
		why += fmt.Sprintf(" (status %d)", e.StatusCode)
	}
	return fmt.Sprintf("retry: %s %s: %s; attempts %d, throttled %d, failed %d",
		e.Method, e.URL, why, e.Attempts, e.Throttled, e.Failures)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout, such as a context's deadline.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// RetryableError returns false: the client has tried again what can be. aws-sdk-go-v2 asks,
// and would otherwise retry the Error blindly.
func (e *Error) RetryableError() bool { return false }

// report returns the Error of the request as it is now. The caller holds r.mu.
func (r *request) report(resp *http.Response, why error) *Error {
	e := &Error{
		Method:    r.req.Method,
		URL:       redactedURL(r.req.URL),
		Attempts:  r.attempts,
		Throttled: r.throttled,
		Failures:  r.failures,
		Err:       why,
	}
	if e.Method == "" {
		e.Method = http.MethodGet
	}
	if resp != nil && r.limited == nil {
		e.StatusCode = resp.StatusCode
	}
	// An http.Client adds the URL, with its query.
	if u, ok := why.(*url.Error); ok {
		e.Err = u.Err
	}
	return e
}

// unread returns the Error of a request whose body cannot be read again after an attempt. The
// next attempt has not begun.
func (r *request) unread(err error) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.report(nil, r.after(err))
	if r.endError != nil {
		e.StatusCode = r.endError.StatusCode
	}
	return e
}

// after adds to an error how the attempt before has ended, with the time to come back if that
// was a refusal. The caller holds r.mu.
func (r *request) after(err error) error {
	if r.endError == nil || r.endError.Err == nil {
		return err
	}
	return fmt.Errorf("%w; the attempt before: %w", err, r.endError.Err)
}

// redactedURL returns the parts of a URL that are no secret.
func redactedURL(u *url.URL) string {
	if u == nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// urls matches URLs in a text, relative ones too, as of a Location that does not parse. A text
// in quotes may be one with spaces or quotes in it. No quote ends any other: a query may have it.
var urls = regexp.MustCompile(`(?s)"(?:[^"\\]|\\.)*"|(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?/\S*`)

// users matches user and password of a URL.
var users = regexp.MustCompile(`//[^/]*@`)

// redacted removes user, password, query and fragment from the URLs in a text.
func redacted(text string) string {
	return urls.ReplaceAllStringFunc(text, func(s string) string {
		if i := strings.IndexAny(s, "?#"); i >= 0 {
			end := ""
			if s[0] == '"' {
				end = `"`
			}
			s = s[:i] + end
		}
		return users.ReplaceAllString(s, "//")
	})
}
