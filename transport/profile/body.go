package profile

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxPeek is how much of a body the profiles look at. Refusals are short: one of Google's,
// with a violation for each of some quotas, has about 3 KiB.
const maxPeek = 8 << 10

// body returns the entry of Bodies that selects a response, whose headers have said s. A nil s
// counts as silent.
func (p *Profile) body(status int, h http.Header, f *candidates, s *Signal) *Body {
	for i := range p.Bodies {
		if k := &p.Bodies[i]; k.Status == status && k.lists(h, f) && (!k.Silent || s == nil || s.silent()) {
			return k
		}
	}
	return nil
}

// lists reports whether the header has the line that the body must have.
func (k *Body) lists(h http.Header, f *candidates) bool {
	missing := aboutLimits(k.Header) && f.n <= len(f.few) && // which is cheaper than to look it up
		!slices.ContainsFunc(f.few[:f.n], func(l line) bool { return strings.EqualFold(l.name, k.Header) })
	if missing || k.Header == "" {
		return !missing
	}
	v, _, _ := strings.Cut(h.Get(k.Header), ";")
	v = trim(v)
	return v != "" && (k.Value == "" || strings.EqualFold(v, k.Value))
}

// silent reports whether the headers lack a wait, or a limit if the response is a success.
func (s *Signal) silent() bool {
	switch {
	case !s.Throttled:
		return s.n == 0
	case s.RetryAfter > 0:
		return false
	}
	read := *s
	read.computeWait(0)
	return read.Wait == 0
}

// readable reports whether the body is of a type that the profile looks at. A body that is also a
// writer is a connection, which belongs to the program.
func (p *Profile) readable(resp *http.Response) bool {
	if _, connection := resp.Body.(io.Writer); connection ||
		resp.Body == nil || resp.Body == http.NoBody || resp.ContentLength == 0 ||
		resp.Header.Get("Content-Encoding") != "" && !resp.Uncompressed && !gzipped(resp) {
		return false
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	if kind = trim(kind); len(kind) > maxName {
		return false
	}
	kind = strings.ToLower(kind)
	return kind == "application/json" || strings.HasSuffix(kind, "+json") ||
		strings.HasPrefix(kind, "application/x-amz-json") || slices.Contains(p.Types, kind)
}

// gzipped reports whether the body is compressed as the program reads it. The program has
// asked for that and unpacks it itself.
func gzipped(resp *http.Response) bool {
	return !resp.Uncompressed && strings.EqualFold(strings.Trim(resp.Header.Get("Content-Encoding"), " \t"), "gzip")
}

// unpacked returns what a compressed text says, as far as it is there and within maxPeek.
func unpacked(b []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil
	}
	z.Multistream(false)                              // no API sends several, and each costs time
	text, _ := io.ReadAll(io.LimitReader(z, maxPeek)) // an error means cut off or broken: what came before counts
	return text
}

const (
	// promptTimeout is how long a body may take before the headers count without it. Most bodies come
	// together with the headers, and some say that the refusal is no matter of pace: an early report
	// to a bucket stays.
	promptTimeout = 10 * time.Millisecond
	// bodyTimeout is how long Read waits for a body, from the headers on.
	bodyTimeout = 2 * time.Second
)

// lookAt begins to look at the response's body, which reads as before.
func lookAt(resp *http.Response) *body {
	size := int64(4 << 10)
	if resp.ContentLength > 0 { // one byte more, to meet the end without growing
		size = min(resp.ContentLength, maxPeek) + 1
	}
	b := &body{old: resp.Body, gzip: gzipped(resp), seen: make([]byte, 0, size), done: make(chan struct{}), begun: make(chan struct{})}
	resp.Body = b
	go b.readAhead()
	return b
}

// body is a body whose beginning a goroutine reads ahead. The goroutine ends with the body, when it
// has seen enough, or with the next bytes after its reader has left. If the body stalls, closing it
// ends the goroutine.
type body struct {
	old  io.ReadCloser
	gzip bool
	done chan struct{} // closed when the goroutine has ended
	// begun is closed when there is more than blanks, which keep connections alive, or done.
	begun chan struct{}

	mu      sync.Mutex // protects what follows
	stopped bool       // the reading ahead ends with the next bytes
	text    bool       // begun is closed
	seen    []byte     // what was read ahead
	off     int        // how much of it the program has read
	err     error      // how the reading ahead ended, if it did
	broken  any        // what the reader panicked with
}

// readAhead reads until there is enough.
func (b *body) readAhead() {
	defer close(b.done)
	defer func() {
		v := recover() // a panic belongs to the program's goroutine, which gets it from replay
		b.mu.Lock()
		defer b.mu.Unlock()
		b.broken = v
		b.begin()
	}()
	for idle := 0; idle < 100; idle++ { // reads in a row that brought nothing
		buffer := b.buffer()
		if len(buffer) == 0 {
			return
		}
		n, err := b.old.Read(buffer)
		if n < 0 || n > len(buffer) {
			n = 0 // a reader that breaks its contract
		}
		if b.added(n, err); n > 0 {
			idle = -1
		}
	}
}

// buffer returns where the next bytes go; none: there is enough.
func (b *body) buffer() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.seen)
	if b.stopped || b.err != nil || n >= maxPeek {
		return nil
	}
	b.seen = slices.Grow(b.seen, 1)
	return b.seen[n:min(cap(b.seen), maxPeek)]
}

func (b *body) added(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.seen)
	b.seen, b.err = b.seen[:before+n], err
	if len(bytes.TrimSpace(b.seen[before:])) > 0 {
		b.begin()
	}
}

func (b *body) begin() {
	if !b.text {
		b.text = true
		close(b.begun)
	}
}

// within waits for the end of something, for at most d, and reports whether it has ended.
func within(d time.Duration, end <-chan struct{}) bool {
	select {
	case <-end:
		return true
	case <-time.After(d):
		return false
	}
}

// look returns what is there. If it is the last look, the reading ahead ends.
func (b *body) look(last bool) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = last
	if b.broken != nil {
		panic(b.broken)
	}
	text := b.seen[:len(b.seen):len(b.seen)]
	if b.gzip {
		text = unpacked(text)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")) // Azure begins with a byte order mark
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.replay(p)
	if n == 0 && err == nil {
		<-b.done // the bytes that the goroutine is reading come first
		n, err = b.replay(p)
	}
	if n == 0 && err == nil {
		return b.old.Read(p)
	}
	return n, err
}

// replay reads what was read ahead, and then how that ended.
func (b *body) replay(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.off < len(b.seen):
		n := copy(p, b.seen[b.off:])
		b.off += n
		return n, nil
	case b.broken != nil:
		panic(b.broken)
	}
	return 0, b.err
}

// Close closes the body below. It waits at most promptTimeout while the goroutine reads
// ahead: the reader that unpacks net/http's gzip cannot be closed before its first bytes.
func (b *body) Close() error {
	select {
	case <-b.done:
		return b.old.Close()
	default:
	}
	var err error
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		defer func() { _ = recover() }() // a panic here would end the program
		err = b.old.Close()
	}()
	if within(promptTimeout, closed) {
		return err
	}
	return nil
}
