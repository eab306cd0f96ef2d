package pgtest

import (
	"database/sql"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// impatient is a [pq.Dialer] of connections on which the server has to answer in time.
type impatient struct{ patience time.Duration }

// Dial implements [pq.Dialer].
func (d impatient) Dial(network, address string) (net.Conn, error) {
	return d.DialTimeout(network, address, d.patience)
}

// DialTimeout implements [pq.Dialer].
func (d impatient) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, timeout)
	return bounded{c, d.patience}, err
}

// bounded is a connection on which no Read takes longer. lib/pq reads only while it waits for an answer.
type bounded struct {
	net.Conn
	patience time.Duration
}

func (b bounded) Read(p []byte) (int, error) {
	if err := b.SetReadDeadline(time.Now().Add(b.patience)); err != nil {
		return 0, err
	}
	return b.Conn.Read(p)
}

// The connections that are open fall silent for ever, and new ones work, as when another server has taken over. lib/pq
// waits for an answer whatever the context says, so its connections have to give up by themselves.
func TestLibPQ_ReadDeadlineEndsSilence(t *testing.T) {
	x := newTables(t, theServer(t))
	line := newProxy(t, x.server)
	connector, err := pq.NewConnector(line.in(x.server).url(nil))
	require.NoError(t, err)
	connector.Dialer(impatient{time.Second})
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	s := x.over(db, short)
	require.NoError(t, call(s, "key"))
	line.set(faults{swallowed: 1})
	for range 3 { // until all that the store may have out wait for answers that do not come
		each(20, func(i int) { require.ErrorIs(t, call(s, fmt.Sprint(i)), store.ErrUnavailable) })
		time.Sleep(time.Second / 2)
	}
	line.set(faults{})
	require.Eventually(t, func() bool { return call(s, "key") == nil }, patience, 10*time.Millisecond)
}
