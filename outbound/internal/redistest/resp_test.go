package redistest

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

var replies = []string{
	"+OK\r\n",
	"-ERR no\r\n",
	":12\r\n",
	"$5\r\nhe\r\no\r\n",
	"$0\r\n\r\n",
	"$-1\r\n",
	"*-1\r\n",
	"*0\r\n",
	"*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
	"_\r\n",
	"#t\r\n",
	",1.5\r\n",
	"(3492890328409238509324850943850943825024385\r\n",
	"!8\r\nERR\r\n or\r\n",
	"=7\r\ntxt:a\r\n\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n+c\r\n",
	"~2\r\n+a\r\n+b\r\n",
	"|1\r\n+ttl\r\n:3600\r\n*1\r\n:2\r\n",
	">2\r\n$7\r\nmessage\r\n+x\r\n",
}

func TestRESP_ReplyIsReadWhole(t *testing.T) {
	for _, want := range replies {
		r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(want + "+next\r\n")))
		got, err := readReply(r)
		require.NoError(t, err, "%q", want)
		require.Equal(t, want, string(got))
		got, err = readReply(r)
		require.NoError(t, err, "after %q", want)
		require.Equal(t, "+next\r\n", string(got))
	}
}

func TestRESP_MalformedReplyIsAnError(t *testing.T) {
	for _, bad := range []string{
		"", "+", "+OK\n", "\r\n", "hello\r\n", "$x\r\n", "$\r\n", "*1\r\n", "$5\r\nabc",
		"*99999999999999999999\r\n", "$536870913\r\n", "%1\r\n+a\r\n",
	} {
		_, err := readReply(bufio.NewReader(strings.NewReader(bad)))
		require.Error(t, err, "%q", bad)
	}
}

func TestRESP_CommandIsSplitIntoWords(t *testing.T) {
	for raw, want := range map[string][]string{
		"*2\r\n$3\r\nGET\r\n$5\r\na\r\n b\r\n":     {"GET", "a\r\n b"},
		"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1\r\nv\r\n": {"SET", "", "v"},
		"get  a\r\n": {"get", "a"},
		"\r\n":       nil,
		"*0\r\n":     nil,
	} {
		r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(raw)))
		got, words, err := readRequest(r)
		require.NoError(t, err, "%q", raw)
		require.Equal(t, raw, string(got))
		require.Equal(t, want, words, "%q", raw)
		_, _, err = readRequest(r)
		require.ErrorIs(t, err, io.EOF)
	}
}

func FuzzRESP_BytesReadAreBytesSent(f *testing.F) {
	for _, s := range replies {
		f.Add([]byte(s))
	}
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		reply, _ := readReply(bufio.NewReader(bytes.NewReader(sent)))
		if !bytes.HasPrefix(sent, reply) {
			t.Errorf("%q was read as %q", sent, reply)
		}
		slow, _ := readReply(bufio.NewReader(iotest.OneByteReader(bytes.NewReader(sent))))
		if !bytes.Equal(reply, slow) {
			t.Errorf("%q was read as %q, and byte by byte as %q", sent, reply, slow)
		}
		request, _, _ := readRequest(bufio.NewReader(bytes.NewReader(sent)))
		if !bytes.HasPrefix(sent, request) {
			t.Errorf("%q was read as the command %q", sent, request)
		}
	})
}
