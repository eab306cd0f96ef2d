// Package calls has what the callers of the examples have in common.
package calls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Do sends a request with headers, name by name and value by value, and returns the response when
// its body was read. An empty value is no header. An error shows no URL, which may hold a token.
func Do(ctx context.Context, client *http.Client, method, to, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, strings.NewReader(body))
	if err != nil {
		return nil, withoutURL(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body) // to its end, so that the next request can use the connection
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, err
}

// withoutURL returns the cause of an error of an http.Client.
func withoutURL(err error) error {
	if outer, ok := errors.AsType[*url.Error](err); ok {
		return outer.Err
	}
	return err
}

// Get sends a GET request.
func Get(ctx context.Context, client *http.Client, to string) (*http.Response, error) {
	return Do(ctx, client, http.MethodGet, to, "")
}

// Sleep waits, and reports false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Together runs n calls of f at the same time, and returns their errors.
func Together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Log prints lines that begin with the seconds since its beginning.
type Log struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
}

// NewLog returns a log that begins.
func NewLog(out io.Writer) *Log { return &Log{out: out, began: time.Now()} }

// Printf prints a line.
func (l *Log) Printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "%4.1f s  %s\n", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}
