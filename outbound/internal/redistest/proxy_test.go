package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// counted waits until a counter of a server stands at n: requests of a client that has given up may
// still be on their way.
func counted(t *testing.T, s *Server, key string, n int) {
	t.Helper()
	require.NoError(t, poll(func() error {
		got, err := s.Client(t).Get(t.Context(), key).Int()
		if err == redis.Nil {
			err = nil
		}
		if err == nil && got != n {
			err = fmt.Errorf("%s is %d, not %d", key, got, n)
		}
		return err
	}))
}

// conn is a plain connection.
type conn struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the test may have closed it
	return &conn{c, t, bufio.NewReader(c)}
}

func (c *conn) send(command string) {
	c.t.Helper()
	words := strings.Fields(command)
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	_, err := c.Write(b)
	require.NoError(c.t, err)
}

// gets checks the next reply, or the error for which there is none.
func (c *conn) gets(want string, wantErr error, within time.Duration) {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(within)))
	got, err := readValue(c.r)
	require.ErrorIs(c.t, err, wantErr)
	require.Equal(c.t, want, string(got))
}

// Without faults all commands and replies pass unchanged, in both protocols.
func TestProxy_WithoutFaultsChangesNothing(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		s := Start(t)
		p := NewProxy(t, s.Addr())
		client := s.Client(t, func(o *redis.Options) { o.Addr, o.Protocol, o.ReadTimeout = p.Addr(), protocol, patience })
		ctx := t.Context()
		large := strings.Repeat("x\r\n", 400_000)
		require.NoError(t, client.Set(ctx, "large", large, 0).Err())
		require.Equal(t, large, client.Get(ctx, "large").Val())
		require.NoError(t, client.HSet(ctx, "h", "a", 1, "b", 2).Err())
		require.Equal(t, map[string]string{"a": "1", "b": "2"}, client.HGetAll(ctx, "h").Val())
		require.ErrorIs(t, client.Get(ctx, "none").Err(), redis.Nil)
		require.Error(t, client.Incr(ctx, "h").Err())
		replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for range 1000 {
				pipe.Incr(ctx, "n")
			}
			return nil
		})
		require.NoError(t, err)
		for i, r := range replies {
			require.EqualValues(t, i+1, r.(*redis.IntCmd).Val())
		}
		require.Zero(t, p.Lost())
	}
}

// A dropped request or reply ends its connection. A swallowed one silences it: a client would take
// a later reply for the lost one. Handshakes pass unless the faults include them.
func TestProxy_LosesRequestsAndReplies(t *testing.T) {
	for _, c := range []struct {
		why     string
		faults  Faults
		command string
		err     error // that the client gets in place of a reply
		done    int   // of the command and the next one, so many are carried out
	}{
		{"dropped reply", Faults{DropReplies: 1}, "INCR n", io.EOF, 1},
		{"swallowed reply", Faults{SwallowReplies: 1}, "INCR n", os.ErrDeadlineExceeded, 2},
		{"dropped request", Faults{DropRequests: 1}, "INCR n", io.EOF, 0},
		{"swallowed request", Faults{SwallowRequests: 1}, "INCR n", os.ErrDeadlineExceeded, 0},
		{"no handshake", Faults{DropRequests: 1, DropReplies: 1}, "select 0", nil, 1},
		{"handshake", Faults{DropRequests: 1, Handshakes: true}, "select 0", io.EOF, 0},
	} {
		t.Run(c.why, func(t *testing.T) {
			s := Start(t)
			p := NewProxy(t, s.Addr())
			one := dial(t, p)
			p.Set(c.faults)
			one.send(c.command)
			switch c.err {
			case nil:
				one.gets("+OK\r\n", nil, patience)
			case io.EOF:
				one.gets("", io.EOF, patience)
			default:
				require.NoError(t, poll(func() error {
					if p.Lost() == 0 {
						return fmt.Errorf("nothing is lost")
					}
					return nil
				}))
			}
			p.Set(Faults{})
			if c.err != io.EOF {
				one.send("INCR n")
			}
			if c.err == nil {
				one.gets(":1\r\n", nil, patience)
			}
			counted(t, s, "n", c.done)
			if c.err == os.ErrDeadlineExceeded {
				one.gets("", c.err, 50*time.Millisecond)
			}
			counted(t, s, "n", c.done)
		})
	}
}

// A reply comes after its delay. A delayed request reaches the server although its client has
// closed the connection.
func TestProxy_DelaysRepliesAndRequests(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	one := dial(t, p)
	p.Set(Faults{Delay: 30 * time.Millisecond})
	from := time.Now()
	one.send("INCR n")
	one.gets(":1\r\n", nil, patience)
	require.GreaterOrEqual(t, time.Since(from), 30*time.Millisecond)
	p.Set(Faults{DelayRequests: 50 * time.Millisecond})
	from = time.Now()
	one.send("INCR n")
	require.NoError(t, one.Close())
	counted(t, s, "n", 2)
	require.GreaterOrEqual(t, time.Since(from), 50*time.Millisecond)
}

// All connections end at a Cut, and when the server ends.
func TestProxy_CutEndsAllConnections(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	for _, end := range []func(){p.Cut, func() { s.Kill(t) }} {
		one := dial(t, p)
		one.send("PING")
		one.gets("+PONG\r\n", nil, patience)
		end()
		one.gets("", io.EOF, patience)
	}
	dial(t, p).gets("", io.EOF, patience)
}

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
