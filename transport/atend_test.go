package transport

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

func TestAtEndHasTheLastBytesHoweverTheyAreRead(t *testing.T) {
	text := strings.Repeat("0123456789", 50)
	for name, reader := range map[string]func(io.Reader) io.Reader{
		"whole":         func(r io.Reader) io.Reader { return r },
		"byte by byte":  iotest.OneByteReader,
		"halves":        iotest.HalfReader,
		"EOF with data": iotest.DataErrReader,
	} {
		for _, most := range []int{1, 2, 7, 499, 500, 501, 1 << 20} {
			var tails []string
			resp := &http.Response{StatusCode: 200, Body: io.NopCloser(reader(strings.NewReader(text)))}
			AtEnd(resp, most, func(tail []byte) { tails = append(tails, string(tail)) })
			got, err := io.ReadAll(resp.Body)
			if err != nil || string(got) != text {
				t.Fatalf("%s, %d: read %d bytes, %v", name, most, len(got), err)
			}
			_, _ = resp.Body.Read(make([]byte, 1)) // EOF once more
			_ = resp.Body.Close()
			if want := text[max(0, len(text)-most):]; len(tails) != 1 || tails[0] != want {
				t.Errorf("%s, %d: %q", name, most, tails)
			}
		}
	}
}

func TestAtEndKeepsNoMoreThanItWasAskedFor(t *testing.T) {
	resp := &http.Response{StatusCode: 200, Body: io.NopCloser(io.LimitReader(endless{}, 10<<20))}
	n := 0
	AtEnd(resp, 100, func(tail []byte) { n = cap(tail) })
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if n == 0 || n > 1024 {
		t.Errorf("keeps %d bytes for a tail of 100", n)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// stuck brings neither bytes nor an end.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestAtEndIsNotCalledWithoutAnEnd(t *testing.T) {
	never := func([]byte) { t.Error("called") }
	broken := &http.Response{StatusCode: 200, Body: io.NopCloser(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errors.New("reset"))))}
	AtEnd(broken, 10, never)
	if _, err := io.ReadAll(broken.Body); err == nil {
		t.Error("the error is lost")
	}
	body := newBody(strings.Repeat("some text", 1000))
	early := &http.Response{StatusCode: 200, Body: body}
	AtEnd(early, 10, never)
	_, _ = early.Body.Read(make([]byte, 4))
	_ = early.Body.Close()
	if body.closed.Load() != 1 {
		t.Errorf("closed %d times", body.closed.Load())
	}
	late := &http.Response{StatusCode: 200, Body: io.NopCloser(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errors.New("reset"))))}
	AtEnd(late, 10, never)
	_ = late.Body.Close()
	idle := &http.Response{StatusCode: 200, Body: io.NopCloser(stuck{})}
	AtEnd(idle, 10, never)
	_ = idle.Body.Close()
	mad := &http.Response{StatusCode: 200, Body: struct{ io.ReadCloser }{}}
	AtEnd(mad, 10, never)
	_ = panics(func() { _ = mad.Body.Close() })
	for _, most := range []int{0, -1} {
		none := &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("x"))}
		AtEnd(none, most, never)
		_, _ = io.ReadAll(none.Body)
	}
	AtEnd(&http.Response{StatusCode: 204}, 10, never) // fakes leave the body out
}

// connection is the body of a 101, to which the caller writes.
type connection struct {
	io.Reader
	bytes.Buffer
	half bool
}

func (c *connection) Read(p []byte) (int, error) { return c.Reader.Read(p) }
func (c *connection) Close() error               { return nil }
func (c *connection) CloseWrite() error          { c.half = true; return nil }

func TestAtEndLeavesAConnectionAsItIs(t *testing.T) {
	conn := &connection{Reader: strings.NewReader("hello")}
	rt := &Transport{Base: answer(101, conn), Limiter: outbound.Must(outbound.NewBucket("api", outbound.InFlight(1))),
		OnResponse: func(resp *http.Response, _ *outbound.Permit) {
			AtEnd(resp, 10, func([]byte) { t.Error("called") })
		}}
	resp, err := rt.RoundTrip(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(resp.Body)
	if w, ok := resp.Body.(io.Writer); !ok {
		t.Error("it cannot be written to")
	} else if _, err := io.WriteString(w, "hi"); err != nil || conn.String() != "hi" {
		t.Errorf("wrote %q, %v", conn.String(), err)
	}
	if err := resp.Body.(interface{ CloseWrite() error }).CloseWrite(); err != nil || !conn.half {
		t.Errorf("CloseWrite: %v", err)
	}
	_ = resp.Body.Close()
}

// The settle comes before the end of the call frees anything, and counts once.
func TestAtEndSettlesByTheUsageInTheBody(t *testing.T) {
	r := new(recorder)
	rt := &Transport{Base: answer(200, io.NopCloser(strings.NewReader(`{"text": "…", "usage": 42}`))), Limiter: r,
		OnResponse: func(resp *http.Response, p *outbound.Permit) {
			AtEnd(resp, 12, func(tail []byte) {
				if bytes.Contains(tail, []byte(`"usage": 42`)) {
					p.Settle(outbound.Cost{42})
				}
			})
		}}
	trip(t, rt)
	if got := r.heard(); got != "acquire 1, settle 42, done" {
		t.Errorf("heard %q", got)
	}
}

// A profile that looks at the body may meet its end first, in a goroutine of its own.
func TestAtEndSettlesOnceWhereTheProfileLooksAtTheBody(t *testing.T) {
	const text = `{"message": "API rate limit exceeded", "used": 7}`
	r := new(recorder)
	var tails []string
	rt := &Transport{Limiter: r, Profile: profile.GitHub, Base: answer(403, io.NopCloser(strings.NewReader(text)), "Content-Type", "application/json"),
		OnResponse: func(resp *http.Response, p *outbound.Permit) {
			resp.ContentLength = int64(len(text))
			AtEnd(resp, 2, func(tail []byte) {
				tails = append(tails, string(tail))
				p.Settle(outbound.Cost{7})
			})
		}}
	resp, err := rt.RoundTrip(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	closeResponse(resp)
	if heard := r.heard(); err != nil || string(got) != text || len(tails) != 1 || tails[0] != "7}" || strings.Count(heard, "settle 7") != 1 {
		t.Errorf("read %q, %v; tails %q; heard %q", got, err, tails, heard)
	}
}
