package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// once makes a client send everything once, with long timeouts.
func once(o *redis.Options) {
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ReadTimeout, o.PoolTimeout = patience, patience
}

// throughProxy returns a proxy, a client that talks through it, and a client that
// talks to the server directly.
func throughProxy(t *testing.T, change func(*redis.Options)) (p *Proxy, through, direct *redis.Client) {
	t.Helper()
	s := Start(t)
	p = NewProxy(t, s.Addr())
	through = s.Client(t, change, func(o *redis.Options) { o.Addr = p.Addr() })
	return p, through, s.Client(t)
}

// counted waits until a counter stands at n: requests that a client has given up may
// still be on their way.
func counted(t *testing.T, client *redis.Client, key string, n int) {
	t.Helper()
	require.NoError(t, poll(func() error {
		got, err := client.Get(t.Context(), key).Int()
		if err != nil && err != redis.Nil {
			return err
		}
		if got != n {
			return fmt.Errorf("%s is %d, not %d", key, got, n)
		}
		return nil
	}))
}

func TestProxy_WithoutFaultsChangesNothing(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		p, client, _ := throughProxy(t, func(o *redis.Options) { once(o); o.Protocol = protocol })
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
		got := p.Counts()
		require.Equal(t, 1006, got.Requests)
		require.Equal(t, 1006, got.Replies)
		require.Equal(t, 1001, got.Commands["INCR"])
		require.Zero(t, got.Dropped+got.Swallowed)
	}
}

func TestProxy_PassesPublishedMessages(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		_, client, direct := throughProxy(t, func(o *redis.Options) { o.Protocol = protocol })
		sub := client.Subscribe(t.Context(), "a", "b")
		t.Cleanup(func() { _ = sub.Close() })
		for range 2 {
			_, err := sub.Receive(t.Context())
			require.NoError(t, err)
		}
		require.NoError(t, direct.Publish(t.Context(), "b", "hello").Err())
		message, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hello", message.Payload)
	}
}

func TestProxy_DroppedReplyLeavesItsCommandDone(t *testing.T) {
	p, client, direct := throughProxy(t, once)
	p.Set(Faults{DropReplies: 1})
	require.ErrorContains(t, client.Incr(t.Context(), "n").Err(), "EOF")
	counted(t, direct, "n", 1)
	require.Equal(t, 1, p.Counts().Dropped)
	require.Zero(t, p.Counts().Replies)
}

func TestProxy_DroppedRequestIsNeverDone(t *testing.T) {
	p, client, direct := throughProxy(t, once)
	p.Set(Faults{DropRequests: 1})
	require.ErrorContains(t, client.Incr(t.Context(), "n").Err(), "EOF")
	p.Set(Faults{})
	require.NoError(t, client.Incr(t.Context(), "n").Err())
	require.Equal(t, "1", direct.Get(t.Context(), "n").Val())
}

// dial returns a plain connection, and a function that sends commands on it.
func dial(t *testing.T, addr string) (net.Conn, func(commands string)) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the test may have closed it
	return conn, func(commands string) {
		t.Helper()
		_, err := conn.Write(spelt(commands))
		require.NoError(t, err)
	}
}

// spelt encodes commands, one a line, as clients do: a miniredis understands nothing
// else.
func spelt(commands string) (b []byte) {
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		b = fmt.Appendf(b, "*%d\r\n", len(words))
		for _, w := range words {
			b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	return b
}

// swallowed waits until the proxy has swallowed something.
func swallowed(t *testing.T, p *Proxy) {
	t.Helper()
	require.NoError(t, poll(func() error {
		if p.Counts().Swallowed == 0 {
			return errors.New("nothing was swallowed")
		}
		return nil
	}))
}

// silent fails the test if anything comes on the connection, or if it closes.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	n, err := conn.Read(make([]byte, 10))
	require.Zero(t, n)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// A client would take a later reply for the lost one.
func TestProxy_SwallowedReplySilencesItsConnection(t *testing.T) {
	p, _, direct := throughProxy(t, once)
	conn, send := dial(t, p.Addr())
	p.Set(Faults{SwallowReplies: 1})
	send("INCR lost\r\n")
	swallowed(t, p)
	p.Set(Faults{})
	send("INCR n\r\n")
	counted(t, direct, "n", 1)
	counted(t, direct, "lost", 1)
	silent(t, conn)
}

func TestProxy_SwallowedRequestEndsItsConnection(t *testing.T) {
	p, client, direct := throughProxy(t, once)
	conn, send := dial(t, p.Addr())
	p.Set(Faults{SwallowRequests: 1})
	send("INCR n\r\n")
	swallowed(t, p)
	p.Set(Faults{})
	send("INCR n\r\n")
	require.NoError(t, client.Incr(t.Context(), "n").Err())
	silent(t, conn)
	require.Equal(t, "1", direct.Get(t.Context(), "n").Val())
}

// The proxy matches replies with requests, but a published message answers none.
func TestProxy_PublishedMessageIsNoReply(t *testing.T) {
	p, _, _ := throughProxy(t, once)
	conn, send := dial(t, p.Addr())
	p.Set(Faults{DropReplies: 1, Only: func(words []string) bool { return words[0] == "PING" }})
	send("HELLO 3\r\nGET none\r\n")
	r := bufio.NewReader(conn)
	for range 2 {
		_, err := readReply(r)
		require.NoError(t, err)
	}
	send("SUBSCRIBE a\r\nPING\r\n")
	reply, err := readReply(r)
	require.NoError(t, err)
	require.Equal(t, byte('>'), reply[0])
	_, err = readReply(r)
	require.ErrorIs(t, err, io.EOF)
}

func TestProxy_DelayedRepliesKeepTheirOrder(t *testing.T) {
	const delay = 30 * time.Millisecond
	p, client, _ := throughProxy(t, once)
	require.NoError(t, client.Ping(t.Context()).Err())
	p.Set(Faults{Delay: delay, Jitter: delay})
	start := time.Now()
	replies, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for range 100 {
			pipe.Incr(t.Context(), "n")
		}
		return nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(start), delay)
	for i, r := range replies {
		require.EqualValues(t, i+1, r.(*redis.IntCmd).Val())
	}
}

func TestProxy_DelayedRequestOutlivesItsClient(t *testing.T) {
	p, _, direct := throughProxy(t, once)
	conn, send := dial(t, p.Addr())
	const requests = 5
	for i := range requests {
		p.Set(Faults{DelayRequests: time.Duration(i+5) * 10 * time.Millisecond})
		send("INCR n\r\n")
		require.NoError(t, poll(func() error {
			if got := p.Counts().Requests; got != i+1 {
				return fmt.Errorf("%d requests", got)
			}
			return nil
		}))
	}
	require.NoError(t, conn.Close())
	counted(t, direct, "n", requests)
}

func TestProxy_HandshakesPassUnlessSetOtherwise(t *testing.T) {
	p, client, _ := throughProxy(t, once)
	p.Set(Faults{DropReplies: 1, Only: func(words []string) bool { return words[0] != "ping" }})
	require.NoError(t, client.Ping(t.Context()).Err())
	require.Equal(t, map[string]int{"PING": 1}, p.Counts().Commands)
	p.Cut()
	p.Set(Faults{DropReplies: 1, Handshakes: true, Only: func(words []string) bool { return words[0] != "ping" }})
	require.Error(t, client.Ping(t.Context()).Err())
}

func TestProxy_OneSeedGivesTheSameFaults(t *testing.T) {
	p, client, _ := throughProxy(t, once)
	row := func(seed uint64) (lost string) {
		p.Set(Faults{})
		p.Seed(seed)
		p.Set(Faults{DropReplies: 0.3, DropRequests: 0.1})
		for range 40 {
			if client.Ping(t.Context()).Err() != nil {
				lost += "x"
			} else {
				lost += "."
			}
		}
		return lost
	}
	first := row(7)
	require.Contains(t, first, "x")
	require.Contains(t, first, ".")
	require.Equal(t, first, row(7))
	require.NotEqual(t, first, row(8))
}

func TestProxy_OnlySelectsTheCommandsWithFaults(t *testing.T) {
	p, client, direct := throughProxy(t, once)
	first := true
	p.Set(Faults{DropReplies: 1, Only: func(words []string) bool {
		lost := first && strings.EqualFold(words[0], "incr")
		first = first && !lost
		return lost
	}})
	require.NoError(t, client.Ping(t.Context()).Err())
	require.Error(t, client.Incr(t.Context(), "n").Err())
	require.NoError(t, client.Incr(t.Context(), "n").Err())
	require.Equal(t, "2", direct.Get(t.Context(), "n").Val())
}

func TestProxy_CutEndsAllConnections(t *testing.T) {
	p, client, _ := throughProxy(t, once)
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(spelt("PING"))
	require.NoError(t, err)
	reply := make([]byte, 7)
	_, err = conn.Read(reply)
	require.NoError(t, err)
	p.Cut()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, err = conn.Read(reply)
	require.ErrorContains(t, err, "EOF")

	p.Set(Faults{Refuse: true})
	require.Error(t, client.Ping(t.Context()).Err())
	p.Set(Faults{})
	require.NoError(t, client.Ping(t.Context()).Err())
}

func TestProxy_ConnectionsEndWithItsServer(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	client := s.Client(t, once, func(o *redis.Options) { o.Addr = p.Addr() })
	require.NoError(t, client.Ping(t.Context()).Err())
	s.Kill(t)
	require.Error(t, client.Ping(t.Context()).Err())
	s.Restart(t)
	require.NoError(t, client.Ping(t.Context()).Err())
}
