package rowstore

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A row is kept for as long as its state matters, and not much longer. If a call has cost far more
// than its capacity, its level leaks for ages, and the time overflows.
func TestRow_IsKeptWhileItMatters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		s, limit := rows.store(), store.Limit{Name: "calls", Capacity: 100, Rate: 1}
		c := ask(t, s, limit, store.Op{Action: store.Book, Costs: []store.Units{{60}}}).Charges[0]
		require.InDelta(t, 2*60, rows.keep.Seconds(), 5)
		faster := []store.Limit{{Name: "calls", Capacity: 100, Rate: 2}}
		ask(t, s, limit, store.Op{Action: store.Replace, Number: 1, Replacement: faster})
		require.InDelta(t, 30*24, rows.keep.Hours(), 1)
		ask(t, s, limit, store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: &c, Used: store.Units{1e14}}}})
		require.InDelta(t, 100, rows.keep.Hours()/24/365, 1)
	})
}

// Each key has a row of its own, whose name is short and hides the key unless PlainKeys is set.
func TestRow_Names(t *testing.T) {
	s, plain := newTable().store(), New(newTable(), Config{PlainKeys: true})
	long := string(make([]byte, 10<<20))
	keys := []string{"", "a", "A", "a ", "\x00fallback", "\x00beside\"line\"a", "\xff\xfe", "#", "#a", long, long + "a", string(s.Key("a"))}
	for _, s := range []*Store{s, plain} {
		names := make(map[string]bool)
		for _, key := range keys {
			name := string(s.Key(key))
			require.LessOrEqual(t, len(name), 512)
			require.False(t, names[name], "%.20q has the row of another key", key)
			names[name] = true
		}
	}
	require.Equal(t, []byte("tenant 17"), plain.Key("tenant 17"))
	require.NotContains(t, string(s.Key("secret")), "secret")
}

// A row takes what the package says.
func TestRow_IsSmall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		for i, most := range []int{100, 220} {
			for range 1 + 9*i {
				require.NoError(t, one(rows.store(), "key"))
			}
			for _, r := range rows.rows {
				require.LessOrEqual(t, len(r.Bytes), most)
			}
		}
	})
}

// A corrupt row is reported, and is no loss of data. It counts as full until it has leaked.
func TestRow_CorruptCountsAsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rows := newTable()
		var seen events
		s, limit := New(rows, Config{Observe: seen.observe}), store.Limit{Name: "calls", Capacity: 10, Rate: 1e-4}
		require.Len(t, ask(t, s, limit, *calls(1)).Charges, 1)
		rows.set(func() { rows.rows[string(s.Key("key"))] = Row{Token: 5, Bytes: []byte{99, 0}} })
		require.True(t, ask(t, s, limit, *calls(1)).Refused)
		require.InDelta(t, 10, ask(t, s, limit, store.Op{}).State.Level[0], 0.1)
		require.Equal(t, []store.StoreEventKind{store.EventCorrupt}, seen.kinds())
		time.Sleep(3 * time.Hour)
		require.Len(t, ask(t, s, limit, *calls(1)).Charges, 1, "it is not shut permanently")
	})
}

// Any bytes are a row: corrupt ones count as full.
func FuzzRow(f *testing.F) {
	rows := newTable()
	require.NoError(f, one(rows.store(), "key"))
	for _, r := range rows.rows {
		f.Add(r.Bytes)
		for _, at := range []int{0, 1, 2, 10, 14, 20, len(r.Bytes) - 1} {
			bad := append([]byte(nil), r.Bytes...)
			bad[at] ^= 0xff
			f.Add(bad)
			f.Add(bad[:at])
		}
	}
	f.Add(binary.BigEndian.AppendUint64(nil, 1<<62))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows := newTable()
		s := rows.store()
		rows.rows[string(s.Key("key"))] = Row{Token: 1, Bytes: b}
		for i := range 3 {
			r, err := s.Update(bg, "key", calls(1))
			require.NoError(t, err, i)
			require.GreaterOrEqual(t, r.State.Level[0], 0.)
		}
	})
}
