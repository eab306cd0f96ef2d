package profile

import (
	"io"
	"net/http"
	"strings"
)

// maxPeek is how much of a body is looked at. Refusals are short: one of Google's,
// with a violation for each of some quotas, has about 3 KiB.
const maxPeek = 8 << 10

// peeks reports whether the profile lists the response.
func (p *Profile) peeks(resp *http.Response) bool {
	for i := range p.Peeks {
		peek := &p.Peeks[i]
		if peek.Status == resp.StatusCode && (peek.Header == "" || strings.EqualFold(resp.Header.Get(peek.Header), peek.Value)) {
			return true
		}
	}
	return false
}

// readable reports whether the body is of a type that is looked at.
func (p *Profile) readable(resp *http.Response) bool {
	if resp.Body == nil || resp.Body == http.NoBody || resp.ContentLength == 0 ||
		resp.Header.Get("Content-Encoding") != "" && !resp.Uncompressed {
		return false
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if kind = strings.Trim(kind, " \t"); len(kind) > maxName {
		return false
	}
	kind = strings.ToLower(kind)
	if kind == "application/json" || strings.HasSuffix(kind, "+json") || strings.HasPrefix(kind, "application/x-amz-json") {
		return true
	}
	for _, t := range p.Types {
		if t == kind {
			return true
		}
	}
	return false
}

// peek returns the beginning of the response's body, which reads as before.
func (p *Profile) peek(resp *http.Response) []byte {
	if !p.readable(resp) {
		return nil
	}
	size := int64(4 << 10)
	if resp.ContentLength > 0 { // one more, to meet the end without growing
		size = min(resp.ContentLength, maxPeek) + 1
	}
	old := resp.Body
	seen := make([]byte, 0, size)
	b := &body{old: old}
	idle := 0 // reads in a row that brought nothing
	for len(seen) < maxPeek && b.err == nil && idle < 100 {
		if len(seen) == cap(seen) {
			seen = append(seen, 0)[:len(seen)]
		}
		n, err := old.Read(seen[len(seen):min(cap(seen), maxPeek)])
		if n < 0 || n > cap(seen)-len(seen) {
			n = 0 // a reader that breaks its contract
		}
		seen = seen[:len(seen)+n]
		b.err = err
		if idle++; n > 0 {
			idle = 0
		}
	}
	b.seen = seen
	resp.Body = b
	if w, ok := old.(io.Writer); ok {
		resp.Body = &writable{body: b, Writer: w}
	}
	return seen
}

// body is a body of which a part has been read already.
type body struct {
	old  io.ReadCloser
	seen []byte // not yet read again
	err  error  // how the reading ended, if it did
}

func (b *body) Read(p []byte) (int, error) {
	switch {
	case len(b.seen) > 0:
		n := copy(p, b.seen)
		b.seen = b.seen[n:]
		return n, nil
	case b.err != nil:
		return 0, b.err
	}
	return b.old.Read(p)
}

func (b *body) Close() error { return b.old.Close() }

// writable is the body of a response that is a connection.
type writable struct {
	*body
	io.Writer
}

// CloseWrite closes half of the connection, if the body below can.
func (w *writable) CloseWrite() error {
	if c, ok := w.Writer.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return http.ErrNotSupported
}
