package transport

import (
	"io"
	"net/http"
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
// Nothing is read ahead and nothing kept but the tail. f is called once, by whoever
// reads; not if the body is closed before its end, or fails, and not for the
// connection of a 101 Switching Protocols. f must not keep the tail.
func AtEnd(resp *http.Response, most int, f func(tail []byte)) {
	if resp.Body == nil || most <= 0 || resp.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	resp.Body = &tail{ReadCloser: resp.Body, most: most, f: f}
}

// tail is a body whose end is kept.
type tail struct {
	io.ReadCloser
	most int
	f    func([]byte)
	kept []byte
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if t.f == nil {
		return n, err
	}
	got := p[:max(0, min(n, len(p)))]
	if len(got) >= t.most {
		t.kept = append(t.kept[:0], got[len(got)-t.most:]...)
	} else {
		if over := len(t.kept) + len(got) - t.most; over > 0 {
			t.kept = append(t.kept[:0], t.kept[over:]...)
		}
		t.kept = append(t.kept, got...)
	}
	if err == io.EOF {
		f := t.f
		t.f = nil
		f(t.kept)
	}
	return n, err
}
