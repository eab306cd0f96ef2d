package transport

import (
	"bufio"
	"io"
	"net/http"
	"sync"
	"time"
)

// AtEnd calls f with the last bytes of a response's body, n at most, when the body has been read to
// its end. There APIs report what a call has cost, as in the usage of a language model's answer,
// streamed or not. AtEnd is for [Transport.OnResponse], whose permit f then settles:
//
//	OnResponse: func(resp *http.Response, p *outbound.Permit) {
//		transport.AtEnd(resp, 4096, func(tail []byte) { p.Settle(outbound.Cost{1, tokens(tail)}) })
//	}
//
// AtEnd never reads ahead, and keeps the tail only. A program that decodes a JSON value often stops
// before the end of the body, which HTTP/2 sends separately. Close then reads on, at most 4 KiB and
// 100 ms, even of a stream that the program gives up.
//
// f is called once, by the goroutine that reads or closes. If the Profile reads the body, that is
// another goroutine: f may then run before RoundTrip has returned. f is not called if the end is
// further away than that, if the body fails, or for the connection of a 101 Switching Protocols. f
// must not keep the tail.
func AtEnd(resp *http.Response, n int, f func(tail []byte)) {
	if resp.Body == nil || n <= 0 || resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	resp.Body = &tail{ReadCloser: resp.Body, size: n, f: f}
}

const (
	maxRest     = 4 << 10                // bytes that Close reads on
	restTimeout = 100 * time.Millisecond // for how long
)

// tail is a body whose last bytes are kept.
type tail struct {
	io.ReadCloser
	size int // bytes to keep at most

	mu   sync.Mutex // held while the body is read; protects what follows
	f    func([]byte)
	kept []byte
}

func (t *tail) Read(p []byte) (int, error) {
	n, f, err := t.read(p)
	if f != nil && err == io.EOF {
		f(t.kept)
	}
	return n, err
}

// read reads, and returns the function to call at the end.
func (t *tail) read(p []byte) (int, func([]byte), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.ReadCloser.Read(p)
	f := t.f
	if f != nil {
		t.keep(p[:max(0, min(n, len(p)))])
	}
	if err != nil {
		t.f = nil
	}
	return n, f, err
}

// keep keeps the last bytes of what was kept and what was read.
func (t *tail) keep(got []byte) {
	if len(got) >= t.size {
		t.kept = append(t.kept[:0], got[len(got)-t.size:]...)
		return
	}
	if over := len(t.kept) + len(got) - t.size; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	t.kept = append(t.kept, got...)
}

func (t *tail) Close() error {
	f := t.readRest()
	err := t.ReadCloser.Close()
	if f != nil {
		f(t.kept)
	}
	return err
}

// readRest reads on to the body's end, and returns the function to call if that was near.
func (t *tail) readRest() func([]byte) {
	if !t.mu.TryLock() {
		return nil // another goroutine is reading, which Close ends
	}
	f := t.f
	if t.f = nil; f == nil {
		t.mu.Unlock()
		return nil
	}
	// The body may stall, and only closing it ends that.
	met := make(chan bool, 1)
	go func() {
		defer t.mu.Unlock()
		atEnd := false
		defer func() {
			_ = recover() // a reader that panics has no end
			met <- atEnd
		}()
		rest, err := bufio.NewReaderSize(t.ReadCloser, maxRest).Peek(maxRest)
		t.keep(rest)
		atEnd = err == io.EOF
	}()
	timer := time.NewTimer(restTimeout)
	defer timer.Stop()
	select {
	case atEnd := <-met:
		if atEnd {
			return f
		}
	case <-timer.C:
	}
	return nil
}
