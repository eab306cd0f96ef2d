package redisstore_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// events collects a store's events.
type events struct {
	mu  sync.Mutex
	all []leak.StoreEvent
}

func (e *events) observe(ev leak.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

// of returns the events of a kind.
func (e *events) of(kind leak.StoreEventKind) (some []leak.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			some = append(some, ev)
		}
	}
	return some
}

func (e *events) await(t testing.TB, kind leak.StoreEventKind) leak.StoreEvent {
	t.Helper()
	require.Eventually(t, func() bool { return len(e.of(kind)) > 0 }, time.Minute, time.Millisecond)
	return e.of(kind)[0]
}

func TestLimitsThatNobodyCanHaveSetAreForgotten(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	for i, bad := range []string{
		"", "x", "5", "5 x", "5 {}", "5 []", "5 [1]", "5 [null]", `5 [{}]`, `5 [{"Capacity":"x","Rate":1}]`, `5 [{"Capacity":-1,"Rate":1}]`,
		`5 [{"Capacity":1,"Rate":0}]`, `5 [{"Capacity":1e13,"Rate":1}]`, `5 [{"Capacity":1,"Rate":1,"Unit":7}]`, `5 [{"Capacity":1,"Rate":1,"Name":[]}]`,
		`5 [{"Capacity":1,"Rate":null}]`, strings.Repeat("9", 400) + " ", "-1 ", "1e5 ", `5 ` + strings.Repeat("[", 500), "5 [" + strings.Repeat(`{"Capacity":1,"Rate":1},`, 8) + `{"Capacity":1,"Rate":1}]`,
		`5 [{"Capacity":1,"Rate":1},{"Capacity":1,"Rate":1}]`,
	} {
		t.Run(fmt.Sprintf("%.40s", bad), func(t *testing.T) {
			var told events
			store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
			b, _ := used(t, s, store, fmt.Sprint("limits:", i))
			require.NoError(t, s.rdb.HSet(t.Context(), store.Key(b.Key()), "v", bad).Err())
			if bad == "5" { // the stamp says that SetLimits was called five times, the last time without limits
				require.Equal(t, 2, drain(t, b, 10))
				return
			}
			require.Zero(t, drain(t, b, 10))
			require.Equal(t, b.Key(), told.await(t, leak.EventCorrupt).Key)
			s.forward(10*time.Second + time.Millisecond)
			store.Forget(b.Key())
			_, err := b.Acquire(t.Context(), outbound.Cost{10})
			require.NoError(t, err)
			s.forward(time.Second) // until no booking is left
			require.NoError(t, b.SetLimits(t.Context(), outbound.Limit{Capacity: 20, LeakRate: 1}))
			_, err = b.Acquire(t.Context(), outbound.Cost{10})
			require.NoError(t, err)
		})
	}
}

// A worker that counts by limits that were set finds garbage in their place, as any
// other worker does.
func TestLimitsThatCannotBeReadAnyMoreAreForgotten(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	for _, bad := range []string{"x", `9 [{"Capacity":-1}]`, `9 {}`} {
		var told events
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
		b := outbound.Must(outbound.NewSharedBucket(punctual(store), "set:"+bad, outbound.Limit{Capacity: 10, LeakRate: 1}))
		require.NoError(t, b.SetLimits(t.Context(), outbound.Limit{Capacity: 20, LeakRate: 1}))
		_, err := b.Acquire(t.Context(), outbound.Cost{15})
		require.NoError(t, err)
		require.NoError(t, s.rdb.HSet(t.Context(), store.Key(b.Key()), "v", bad).Err())
		require.Zero(t, drain(t, b, 10), bad)
		told.await(t, leak.EventCorrupt)
		s.forward(10*time.Second + time.Millisecond)
		store.Forget(b.Key())
		require.Equal(t, 10, drain(t, b, 20), bad)
	}
}

func TestAClockWithoutAStateIsGarbage(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	for _, missing := range []string{"s", "s and levels"} {
		var told events
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
		b, _ := used(t, s, store, missing)
		require.NoError(t, s.rdb.HDel(t.Context(), store.Key(b.Key()), "s").Err())
		if missing != "s" {
			require.NoError(t, s.rdb.HDel(t.Context(), store.Key(b.Key()), "l0").Err())
		}
		require.Zero(t, drain(t, b, 10), missing)
		told.await(t, leak.EventCorrupt)
	}
}

// As with Apply: a worker behind such a lead would try to catch up for ever.
func TestALeadThatNobodyCanReachIsGarbage(t *testing.T) {
	t.Parallel()
	s := newMini(t)
	for _, lead := range []float64{math.Inf(1), 1e301, -1, math.NaN()} {
		var told events
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
		b, fields := used(t, s, store, fmt.Sprint("lead:", lead))
		require.Len(t, fields["s"], 40)
		require.NoError(t, s.rdb.HSet(t.Context(), store.Key(b.Key()), "s", fields["s"]+packed(lead)).Err())
		require.Zero(t, drain(t, b, 10), "%v", lead)
		told.await(t, leak.EventCorrupt)
	}
}

// FuzzStoredBytes writes any bytes into the fields of a key.
func FuzzStoredBytes(f *testing.F) {
	s := newMini(f)
	limit := outbound.Limit{Capacity: 10, LeakRate: 1}
	{
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute})
		_, fields := used(f, s, store, "seed")
		var record string
		for name, value := range fields {
			if name[0] == 'w' {
				record = value
			}
		}
		f.Add([]byte(fields["s"]), []byte(fields["c"]), []byte(fields["r"]), []byte(fields["l0"]), []byte(""), []byte(record))
		f.Add([]byte(fields["s"]), []byte(""), []byte(""), []byte(fields["l0"]), []byte(`7 [{"Capacity":5,"Rate":1}]`), []byte(""))
		for _, bad := range spoil(fields["l0"])[:12] {
			f.Add([]byte(fields["s"]), []byte(fields["c"]), []byte(bad.value), []byte(bad.value), []byte("x"), []byte(bad.value))
		}
	}
	f.Fuzz(func(t *testing.T, state, clock, row, level, limits, record []byte) {
		var told events
		store := redisstore.New(s.rdb, redisstore.Config{Timeout: time.Minute, Observe: told.observe})
		key := hex.EncodeToString([]byte(t.Name()))
		own := []leak.Limit{{Capacity: limit.Capacity, Rate: limit.LeakRate}}
		counts, stamp := own, int64(0)
		ask := func() (r leak.Reply, err error) {
			for range 3 { // ask again with the limits in force
				o := &leak.Op{Limits: counts, Stamp: stamp, Action: leak.Book, Costs: make([]leak.Units, 12)}
				for i := range o.Costs {
					for j := range counts {
						o.Costs[i][j] = min(1, counts[j].Capacity)
					}
				}
				store.Forget(key)
				if r, err = store.Update(t.Context(), key, o); err != nil || !r.Stale {
					break
				}
				if counts, stamp = own, r.Stamp; stamp != 0 {
					counts = r.Limits
				}
				for i := range counts {
					if l := &counts[i]; !(l.Capacity > 0) || !(l.Rate > 0) || l.Capacity > 1e12 || l.Capacity/l.Rate > 3e9 {
						return r, errors.New("a bucket refuses these limits")
					}
				}
			}
			return r, err
		}
		require.NoError(t, s.rdb.Del(t.Context(), store.Key(key)).Err())
		r, err := ask() // makes a record of this store's
		require.NoError(t, err)
		require.Len(t, r.Charges, 10)
		for name, value := range map[string][]byte{"s": state, "c": clock, "r": row, "l0": level, "v": limits, store.Worker(): record} {
			if len(value) > 0 {
				require.NoError(t, s.rdb.HSet(t.Context(), store.Key(key), name, value).Err())
			} else {
				require.NoError(t, s.rdb.HDel(t.Context(), store.Key(key), name).Err())
			}
		}
		for range 2 {
			r, err = ask()
			if err != nil { // limits that only this side can read, or a record whose number is still to come
				require.False(t, errors.Is(err, outbound.ErrAway))
				return
			}
			for i, l := range counts {
				units := 0.
				for k := range r.Charges {
					units += r.Charges[k].N[i]
				}
				if v := r.State.Level[i].Level; !(v >= 0) || !(v < 1e25) {
					t.Fatalf("level %v", v)
				}
				if units > l.Capacity*(1+1e-9) {
					t.Fatalf("%v units of %v at once", units, l)
				}
			}
			if len(told.of(leak.EventCorrupt)) == 0 {
				return
			}
			// One look at garbage removes it.
			s.forward(10*time.Second + time.Millisecond)
		}
		if leak.Equal(counts, own) {
			require.Len(t, r.Charges, 10)
		}
	})
}
