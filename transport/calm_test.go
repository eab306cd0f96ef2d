package transport_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/transport"
)

// frames is a server of HTTP/2 without TLS, which answers each request by frames. It closes the
// connection if answer returns true. It returns its URL.
func frames(t *testing.T, answer func(stream uint32, frame func(kind, flags byte, stream uint32, payload ...byte)) bool) string {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				frame := func(kind, flags byte, stream uint32, payload ...byte) {
					head := append([]byte{0, 0, byte(len(payload)), kind, flags}, binary.BigEndian.AppendUint32(nil, stream)...)
					_, _ = c.Write(append(head, payload...))
				}
				_, _ = io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
				frame(4, 0, 0) // SETTINGS
				for head := make([]byte, 9); ; {
					if _, err := io.ReadFull(c, head); err != nil {
						return
					}
					_, _ = io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
					if head[3] == 1 && answer(binary.BigEndian.Uint32(head[5:]), frame) { // HEADERS
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// overHTTP2 returns a Base that knows that a server speaks HTTP/2 without TLS.
func overHTTP2(t *testing.T) *http.Transport {
	base := &http.Transport{Protocols: new(http.Protocols)}
	base.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// resetting is a server of HTTP/2. It ends each request with a RST_STREAM or a GOAWAY of a code,
// before a response or in the body of one.
func resetting(t *testing.T, goAway, body bool, code uint32, last uint32) string {
	return frames(t, func(stream uint32, frame func(kind, flags byte, stream uint32, payload ...byte)) bool {
		if body {
			frame(1, 4, stream, 0x88) // :status 200
			frame(0, 0, stream, 't')
		}
		if !goAway {
			frame(3, 0, stream, binary.BigEndian.AppendUint32(nil, code)...)
			return false
		}
		frame(7, 0, 0, append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, min(last, stream)), code), "slow down"...)...)
		return true
	})
}

// ENHANCE_YOUR_CALM of HTTP/2 is a refusal without a time, instead of a response and in its body.
// Other codes are none. The codes are those of RFC 9113, section 7.
func TestCalm_IsARefusalWithoutATime(t *testing.T) {
	const internal, refused, calm = 2, 7, 11
	for name, c := range map[string]struct {
		goAway, body bool
		code, last   uint32
		refuses      bool
	}{
		"RST_STREAM":                        {false, false, calm, 0, true},
		"RST_STREAM in the body":            {false, true, calm, 0, true},
		"GOAWAY":                            {true, false, calm, 1, true},
		"GOAWAY in the body":                {true, true, calm, 1, true},
		"GOAWAY without the request":        {true, false, calm, 0, true},
		"INTERNAL_ERROR":                    {false, false, internal, 0, false},
		"INTERNAL_ERROR in the body":        {false, true, internal, 0, false},
		"REFUSED_STREAM in the body":        {false, true, refused, 0, false},
		"GOAWAY with NO_ERROR":              {true, false, 0, 1, false},
		"GOAWAY with NO_ERROR, in the body": {true, true, 0, 1, false},
	} {
		for _, untilEnd := range []bool{false, true} {
			limiter := &recorder{}
			rt := &transport.Transport{Limiter: limiter, Base: overHTTP2(t)}
			if untilEnd {
				rt.OnResponse = ignore
			}
			req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, resetting(t, c.goAway, c.body, c.code, c.last), nil))
			resp, err := rt.RoundTrip(req)
			fatalIf(t, (err == nil) != c.body, "%s: %v", name, err)
			if c.body {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			got := strings.Contains(limiter.take(), "refused 0s")
			errorIf(t, got != c.refuses || errors.Is(err, transport.ErrCalm) != c.refuses || err == nil,
				"%s: refused %v, %v", name, got, err)
		}
	}
}

// The texts are those of golang.org/x/net/http2 v0.62.0 and of net/http in Go 1.26.8 and 1.27.4. The
// debug data of a GOAWAY are the API's own words, which do not count.
func TestCalm_Texts(t *testing.T) {
	for text, want := range map[string]bool{
		"stream error: stream ID 47; ENHANCE_YOUR_CALM; received from peer":                                                          true,
		"http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM":                                                     true,
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=ENHANCE_YOUR_CALM, debug="x"`:                  true,
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug="ENHANCE_YOUR_CALM"`:           false,
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug="; ErrCode=ENHANCE_YOUR_CALM"`: false,
		"stream error: stream ID 1; REFUSED_STREAM; received from peer":                                                              false,
		"lookup ENHANCE_YOUR_CALM: no such host":                                                                                     false,
	} {
		limiter := &recorder{}
		_, err := getURL(t.Context(), &transport.Transport{Limiter: limiter, Base: failing(errors.New(text))}, "http://h/")
		got := strings.Contains(limiter.take(), "refused")
		errorIf(t, got != want || errors.Is(err, transport.ErrCalm) != want, "%s: refused %v, %v", text, got, err)
	}
}
