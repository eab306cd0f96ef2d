package redisstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// A booking moves to no later place, as it would where a call in a window has cost more than it was to since the
// booking.
func TestABookingMovesToNoLaterPlace(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *server{"miniredis": newMini, "redis": newClocked} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
			limits := []leak.Limit{{Kind: leak.Moving, Capacity: 3, Rate: 1.5, Window: 2 * time.Second}}
			ask := func(key string, op leak.Op) leak.Reply {
				op.Limits, op.Action, op.Wait = limits, leak.Book, time.Minute
				r, err := store.Update(t.Context(), key, &op)
				require.NoError(t, err)
				return r
			}
			settled := func(c *leak.Charge, used float64) []leak.Report {
				return []leak.Report{{Kind: leak.Settled, Charge: c, Used: leak.Units{used}}}
			}
			for key, used := range map[string]float64{"more": 3, "less": 1} {
				ask(key, leak.Op{Costs: []leak.Units{{1}}})
				s.forward(time.Second / 2)
				second := ask(key, leak.Op{Costs: []leak.Units{{2}}}).Charges[0]
				booked := ask(key, leak.Op{Costs: []leak.Units{{1}}}).Charges[0]
				op := leak.Op{Costs: []leak.Units{{1}}, Move: &booked}
				if reports := settled(&second, used); used > 2 {
					ask(key, leak.Op{Reports: reports})
				} else {
					op.Reports = reports
				}
				r := ask(key, op)
				last := r.State.Dial() + r.State.Last
				if used > 2 {
					require.Empty(t, r.Charges)
					require.InDelta(t, booked.Place, last, 2e3)
				} else {
					require.Len(t, r.Charges, 1)
					require.Less(t, r.Charges[0].Place, booked.Place-time.Second)
				}
				require.False(t, r.Refused)
			}
		})
	}
}
