package transport

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// AtEnd calls f with the last bytes of a response's body, at most so many, when it has
// been read to its end: where APIs say what a call has cost, as in the usage of a
// language model's answer, streamed or not. It is for [Transport.OnResponse], with a
// permit to settle then:
//
//	OnResponse: func(resp *http.Response, p *outbound.Permit) {
//		transport.AtEnd(resp, 4096, func(tail []byte) { p.Settle(usage(tail)) })
//	}
//
// Nothing is read ahead and nothing kept but the tail. Whoever decodes a JSON value has
// read all of that and often not the end behind it, which HTTP/2 sends apart. So Close
// reads on where the end was not met: at most 4 KiB, and for at most 100 ms, also of a
// stream that is given up.
//
// f is called once, by whoever reads or closes; not if the end is further away than
// that, or the body fails, and not for the connection of a 101 Switching Protocols. f
// must not keep the tail.
func AtEnd(resp *http.Response, most int, f func(tail []byte)) {
	if resp.Body == nil || most <= 0 || resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	resp.Body = &tail{ReadCloser: resp.Body, most: most, f: f}
}

const (
	maxRest = 4 << 10                // bytes that Close reads on
	atMost  = 100 * time.Millisecond // for how long
)

// tail is a body whose end is kept.
type tail struct {
	io.ReadCloser
	most int

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

// read reads, and returns who is to hear of the end.
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
	if len(got) >= t.most {
		t.kept = append(t.kept[:0], got[len(got)-t.most:]...)
		return
	}
	if over := len(t.kept) + len(got) - t.most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	t.kept = append(t.kept, got...)
}

func (t *tail) Close() error {
	f := t.rest()
	err := t.ReadCloser.Close()
	if f != nil {
		f(t.kept)
	}
	return err
}

// rest reads on to the body's end, if that is near, and returns who is to hear of it.
func (t *tail) rest() func([]byte) {
	if !t.mu.TryLock() {
		return nil // somebody is reading, which Close ends
	}
	f := t.f
	if t.f = nil; f == nil {
		t.mu.Unlock()
		return nil
	}
	// The body may stall, and only to close it ends that.
	end := make(chan bool, 1)
	go func() {
		defer t.mu.Unlock()
		met := false
		defer func() {
			_ = recover() // a reader that panics has no end
			end <- met
		}()
		met = t.finish()
	}()
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case met := <-end:
		if met {
			return f
		}
	case <-timer.C:
	}
	return nil
}

// finish reads on, and reports whether it has met the end.
func (t *tail) finish() bool {
	var p [512]byte
	idle := 0 // reads in a row that brought nothing
	for left := maxRest; left > 0 && idle < 100; {
		n, err := t.ReadCloser.Read(p[:min(left, len(p))])
		n = max(0, min(n, len(p)))
		t.keep(p[:n])
		if err != nil {
			return err == io.EOF
		}
		left -= n
		if idle++; n > 0 {
			idle = 0
		}
	}
	return false
}
