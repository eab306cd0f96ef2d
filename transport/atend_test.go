package transport_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// atEnd returns a response with this body, and the tails with which AtEnd has called.
func atEnd(body io.ReadCloser, most int) (*http.Response, *[]string) {
	tails := new([]string)
	resp := &http.Response{StatusCode: 200, Body: body}
	transport.AtEnd(resp, most, func(tail []byte) { *tails = append(*tails, string(tail)) })
	return resp, tails
}

// The tail has the last bytes, however they are read, and AtEnd calls once.
func TestAtEnd_HasTheLastBytes(t *testing.T) {
	text := strings.Repeat("0123456789", 50)
	for name, reader := range map[string]func(io.Reader) io.Reader{
		"whole":         func(r io.Reader) io.Reader { return r },
		"byte by byte":  iotest.OneByteReader,
		"halves":        iotest.HalfReader,
		"EOF with data": iotest.DataErrReader,
	} {
		for _, most := range []int{1, 2, 7, 499, 500, 501, 1 << 20} {
			resp, tails := atEnd(io.NopCloser(reader(strings.NewReader(text))), most)
			got, err := io.ReadAll(resp.Body)
			fatalIf(t, err != nil || string(got) != text, "%s, %d: read %d bytes, %v", name, most, len(got), err)
			_ = resp.Body.Close()
			_, _ = resp.Body.Read(make([]byte, 1)) // EOF once more
			want := text[max(0, len(text)-most):]
			errorIf(t, !slices.Equal(*tails, []string{want}), "%s, %d: %q", name, most, *tails)
		}
	}
}

// AtEnd keeps the tail only.
func TestAtEnd_KeepsTheTailOnly(t *testing.T) {
	resp := &http.Response{StatusCode: 200, Body: io.NopCloser(io.LimitReader(endless{}, 10<<20))}
	n := 0
	transport.AtEnd(resp, 100, func(tail []byte) { n = cap(tail) })
	must(io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 1<<20)))
	errorIf(t, n == 0 || n > 1024, "keeps %d bytes for a tail of 100", n)
}

// reader is a body that is a function.
type reader func([]byte) (int, error)

func (f reader) Read(p []byte) (int, error) { return f(p) }

// AtEnd does not call for a body that fails, is closed early, stalls or panics.
func TestAtEnd_IsNotCalledWithoutAnEnd(t *testing.T) {
	resets := func() io.Reader { return io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errors.New("reset"))) }
	for name, c := range map[string]struct {
		body io.Reader
		read int64 // before Close
		most int
	}{
		"broken":           {resets(), 10, 10},
		"broken, unread":   {resets(), 0, 10},
		"far from its end": {strings.NewReader(strings.Repeat("some text", 1000)), 4, 10},
		"stuck":            {reader(func([]byte) (int, error) { return 0, nil }), 0, 10},
		"panics":           {reader(func([]byte) (int, error) { panic("crash") }), 0, 10},
		"keeps nothing":    {strings.NewReader("x"), 10, 0},
		"keeps less":       {strings.NewReader("x"), 10, -1},
	} {
		body := &counted{Reader: c.body}
		resp, tails := atEnd(body, c.most)
		_, err := io.CopyN(io.Discard, resp.Body, c.read)
		errorIf(t, name == "broken" && err == nil, "the error is lost")
		_ = resp.Body.Close()
		errorIf(t, len(*tails) > 0 || body.closed.Load() != 1,
			"%s: called with %q, closed %d times", name, *tails, body.closed.Load())
	}
	transport.AtEnd(&http.Response{StatusCode: 204}, 10, func([]byte) {}) // fakes leave the body out
}

// A program that decodes a JSON value stops before the body's end. Close reads the rest, also if the
// end comes later. In a bubble no time passes while a goroutine waits for the network.
func TestAtEnd_CallsAfterDecodedJSON(t *testing.T) {
	const text = `{"usage": 42}`
	for name, c := range map[string]struct {
		http2, apart bool // apart: the end comes after the value was decoded
	}{
		"HTTP/1":        {},
		"HTTP/1, apart": {apart: true},
		"HTTP/2":        {http2: true},
		"HTTP/2, apart": {http2: true, apart: true},
	} {
		bubble(t, name, func(t *testing.T) {
			decoded := make(chan struct{})
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				errorIf(t, (req.ProtoMajor == 2) != c.http2, "the protocol is %s", req.Proto)
				_, _ = io.WriteString(w, text)
				if c.apart {
					_ = http.NewResponseController(w).Flush()
					<-decoded
				}
			}))
			if s.EnableHTTP2 = c.http2; c.http2 {
				s.StartTLS()
			} else {
				s.Start()
			}
			defer s.Close()
			var tails []string
			client := &http.Client{Transport: &transport.Transport{Base: s.Client().Transport, OnResponse: func(resp *http.Response, _ *outbound.Permit) {
				transport.AtEnd(resp, 100, func(tail []byte) { tails = append(tails, string(tail)) })
			}}}
			for range 20 {
				resp := must(client.Get(s.URL))
				var value any
				check(t, json.NewDecoder(resp.Body).Decode(&value))
				if c.apart {
					decoded <- struct{}{}
				}
				check(t, resp.Body.Close())
			}
			want := strings.Repeat(text, 20)
			errorIf(t, strings.Join(tails, "") != want, "called for %d ends of 20: %q", len(tails), tails)
		})
	}
}

// Close reads on for a tenth of a second at most, and only if no other goroutine is reading: that
// one's Read ends.
func TestAtEnd_CloseReadsForATenthOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, drip := range []time.Duration{time.Hour, 30 * time.Millisecond} {
			r, w := io.Pipe()
			resp, tails := atEnd(r, 10)
			var writer sync.WaitGroup
			writer.Go(func() {
				for {
					if _, err := w.Write([]byte("x")); err != nil {
						return // the body was closed
					}
					time.Sleep(drip)
				}
			})
			_, _ = resp.Body.Read(make([]byte, 1))
			begin := time.Now()
			_ = resp.Body.Close()
			if took := time.Since(begin); took != 100*time.Millisecond || len(*tails) > 0 {
				t.Errorf("every %v: closed after %v, called with %q", drip, took, *tails)
			}
			_ = resp.Body.Close()
			_, err := resp.Body.Read(make([]byte, 1))
			errorIf(t, err == nil, "it can still be read")
			writer.Wait()
		}
		r, _ := io.Pipe()
		resp, tails := atEnd(r, 10)
		var reader sync.WaitGroup
		reader.Go(func() {
			_, err := io.ReadAll(resp.Body)
			errorIf(t, err != io.ErrClosedPipe, "%v", err)
		})
		synctest.Wait()
		begin := time.Now()
		_ = resp.Body.Close()
		reader.Wait()
		if took := time.Since(begin); took != 0 || len(*tails) > 0 {
			t.Errorf("while another goroutine reads: closed after %v, called with %q", took, *tails)
		}
	})
}

// The tail has the bytes that Close reads.
func TestAtEnd_TailHasWhatCloseReads(t *testing.T) {
	for _, more := range []int{0, 1, 600, 4000} {
		text := "some text" + strings.Repeat("0123456789", 400)[:more] + "the end"
		resp, tails := atEnd(newBody(text), 10)
		_, _ = resp.Body.Read(make([]byte, 9))
		_ = resp.Body.Close()
		_ = resp.Body.Close()
		want := text[len(text)-10:]
		errorIf(t, !slices.Equal(*tails, []string{want}), "%d bytes more: %q, want %q", more, *tails, want)
	}
}

// The call settles once, before its end frees anything, also if the profile has read the body in a
// goroutine of its own.
func TestAtEnd_SettlesByTheUsageInTheBody(t *testing.T) {
	const text = `{"message": "API rate limit exceeded", "used": 7}`
	for status, want := range map[int]string{200: "acquire 1, settle 7, done", 403: "acquire 1, settle 7, refused 0s, done"} {
		r := new(recorder)
		var tails []string
		rt := &transport.Transport{Limiter: r, Profile: profile.GitHub, Base: answer(status, io.NopCloser(strings.NewReader(text)), "Content-Type", "application/json"),
			OnResponse: func(resp *http.Response, p *outbound.Permit) {
				resp.ContentLength = int64(len(text))
				transport.AtEnd(resp, 2, func(tail []byte) {
					tails = append(tails, string(tail))
					p.Settle(outbound.Cost{7})
				})
			}}
		resp := open(t, t.Context(), rt)
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if recorded := r.take(); err != nil || string(got) != text || !slices.Equal(tails, []string{"7}"}) || recorded != want {
			t.Errorf("%d: read %q, %v; tails %q; recorded %q, want %q", status, got, err, tails, recorded, want)
		}
	}
}
