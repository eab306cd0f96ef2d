package redistest

import (
	"bufio"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// A value of each type is read whole, in whatever pieces it comes.
func TestRESP_ValueIsReadWhole(t *testing.T) {
	for _, want := range []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$5\r\nhe\r\no\r\n", "$0\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n",
		"*2\r\n*1\r\n:1\r\n$1\r\na\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(3492890328409238509324850943850943825024385\r\n",
		"!8\r\nERR\r\n or\r\n", "=7\r\ntxt:a\r\n\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n+c\r\n", "~2\r\n+a\r\n+b\r\n",
		"|1\r\n+ttl\r\n:3600\r\n*1\r\n:2\r\n", ">2\r\n$7\r\nmessage\r\n+x\r\n",
	} {
		r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(want + "*1\r\n$4\r\nping\r\n")))
		got, err := readValue(r)
		require.NoError(t, err, "%q", want)
		require.Equal(t, want, string(got))
		got, err = readValue(r)
		require.NoError(t, err, "after %q", want)
		require.Equal(t, "PING", commandOf(got))
	}
}
