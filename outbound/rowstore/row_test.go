package rowstore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A row is kept for as long as its state matters, and not much longer.
func TestRow_IsKeptWhileItMatters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var keep time.Duration
		rows := &keeping{table: newTable(), keep: &keep}
		bucket := shared(rowstore.New(rows, rowstore.Config{}), 100, 1)
		bucket.do(t, store.Op{Action: store.Book, Costs: []store.Units{{60}}})
		require.InDelta(t, 2*60, keep.Seconds(), 5)
		faster := []store.Limit{{Name: "calls", Capacity: 100, Rate: 2}}
		bucket.do(t, store.Op{Action: store.Replace, Number: 1, Replacement: faster})
		require.InDelta(t, 30*24, keep.Hours(), 1)
	})
}

// A call that has cost far more than its capacity leaves a level that leaks for ages. The row is kept,
// although its time overflows.
func TestRow_LevelThatLeaksForAgesIsKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var keep time.Duration
		rows := &keeping{table: newTable(), keep: &keep}
		bucket := shared(rowstore.New(rows, rowstore.Config{}), 10, 1e-5)
		c := bucket.do(t, store.Op{Action: store.Book, Costs: []store.Units{{1}}}).Charges[0]
		bucket.do(t, store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: &c, Used: store.Units{1e9}}}})
		require.InDelta(t, 100, keep.Hours()/24/365, 1)
	})
}

// keeping are rows that note for how long they are to be kept.
type keeping struct {
	*table
	keep *time.Duration
}

func (k *keeping) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	for i := range swaps {
		if swaps[i].New != nil {
			*k.keep = swaps[i].Keep
		}
	}
	return k.table.Swap(ctx, swaps)
}

// Each key has a row of its own, whose name is short and hides the key unless PlainKeys is set.
func TestRow_Names(t *testing.T) {
	s := rowstore.New(newTable(), rowstore.Config{})
	plain := rowstore.New(newTable(), rowstore.Config{PlainKeys: true})
	long := make([]byte, 10<<20)
	keys := []string{"", "a", "A", "a ", "\x00fallback", "\x00beside\"line\"a", "\xff\xfe", "#", "#a", string(long), string(long) + "a", string(s.Key("a"))}
	for _, s := range []*rowstore.Store{s, plain} {
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

// Any bytes are a row: corrupt ones count as full.
func FuzzRow(f *testing.F) {
	rows := newTable()
	if _, err := rows.store().Update(context.Background(), "key", calls(1)); err != nil {
		f.Fatal(err)
	}
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
		rows.rows[string(s.Key("key"))] = rowstore.Row{Token: 1, Bytes: b}
		for i := range 3 {
			r, err := s.Update(context.Background(), "key", calls(1))
			require.NoError(t, err, fmt.Sprint(i))
			for _, l := range r.State.Level[:1] {
				require.False(t, !(l >= 0), "level %v", l)
			}
		}
	})
}
