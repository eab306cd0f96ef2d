//go:build linux

package chaos

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// One of four workers changes the limits while all of them call. From then on the new
// limits count for all, and the bucket keeps its content.
func TestSetLimits_CountForAllUnderLoad(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	changes := [][2]outbound.Limit{
		{leaky, window},
		{{Capacity: 20, LeakRate: 300}, outbound.Window(12, 160*time.Millisecond)},
		{{Capacity: 4, LeakRate: 50}, outbound.Window(30, 200*time.Millisecond)},
		{{Capacity: 40, LeakRate: 20}, outbound.Window(8, 200*time.Millisecond)},
		{{Capacity: 5, LeakRate: 200}, outbound.Window(25, 250*time.Millisecond)},
	}
	fs := newFleets(t, changes[0][:]...)
	fs.addSome(4, func() redis.UniversalClient { return server.Client(t) }, role{timeout: time.Minute})
	fs.goesOn(20)
	begun, ended := make([][]time.Time, len(fs)), make([][]time.Time, len(fs))
	for i, limits := range changes {
		for k, f := range fs {
			if i > 0 {
				ended[k] = append(ended[k], time.Now())
				require.NoError(t, f.members[d.IntN(4)].bucket.SetLimits(t.Context(), limits[k]))
			}
			begun[k] = append(begun[k], time.Now())
		}
		fs.goesOn(1)
		fs.run(d.between(400*time.Millisecond, 500*time.Millisecond))
	}
	for k, f := range fs {
		f.stop()
		ended[k] = append(ended[k], time.Now())
		require.Len(t, f.lives(), 1, "a change of limits is no new life")
		within := func(from, to time.Time) *outboundtest.History {
			h := &outboundtest.History{}
			for at := range f.api.Arrivals().All() {
				if !at.Before(from) && at.Before(to) {
					h.Add(at, 1)
				}
			}
			return h
		}
		before := 0.
		for i, limits := range changes {
			p, from, to := promiseOf(t, limits[k]), begun[k][i], ended[k][i]
			if p.window == 0 {
				// The bucket's content may have been above the new limit when it changed, once.
				f.checkCalls(within(from, to), p, max(0, before-p.units))
				before = max(p.units, before-p.rate*to.Sub(from).Seconds())
				continue
			}
			// So may calls that were booked before the change, a window and more ahead. Those
			// that are booked later go behind them, and count them.
			if i == 0 {
				f.checkCalls(within(from, to), p, 0)
				continue
			}
			was := promiseOf(t, changes[i-1][k])
			booked := was.units * math.Ceil(float64(p.window)/float64(was.window))
			f.checkCalls(within(from, to), p, max(0, booked-p.units))
			f.checkCalls(within(from.Add(was.window+ahead), to), p, 0)
		}
		for _, m := range f.members {
			s, err := m.bucket.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, changes[len(changes)-1][k], s.Limit)
		}
	}
}

// Changing a rate or a window again and again does not refill the bucket.
func TestSetLimits_OftenRefillsNothing(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	fs := newFleets(t, outbound.Limit{Capacity: 20, LeakRate: 50}, window)
	stricter := []outbound.Limit{{Capacity: 20, LeakRate: 45}, outbound.Window(18, 220*time.Millisecond)}
	fs.addSome(3, func() redis.UniversalClient { return server.Client(t) }, role{timeout: time.Minute})
	fs.goesOn(30)
	for i := range 10 {
		fs.run(d.between(20*time.Millisecond, 100*time.Millisecond))
		for k, f := range fs {
			l := f.limits[0]
			if i%2 == 1 {
				l = stricter[k]
			}
			require.NoError(t, f.members[d.IntN(3)].bucket.SetLimits(t.Context(), l))
		}
	}
	fs.goesOn(1)
	fs.check(nothing)
}

// Keys of another version's format lie beside ours. The store neither reads nor changes
// them.
func TestFormat_OtherKeysAreNotTouched(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	key := redisstore.New(client, redisstore.Config{}).Key("bucket")
	format := ":1:"
	require.Equal(t, 1, strings.Count(key, format))
	var others []string
	for _, other := range []string{":0:", ":2:", ":10:", ":"} {
		name := strings.Replace(key, format, other, 1)
		others = append(others, name)
		require.NoError(t, client.HSet(t.Context(), name, "s", "full to the brim", "v", "7 nonsense", "l0", "9999").Err())
	}
	dump := func() (all []map[string]string) {
		for _, name := range others {
			fields, err := client.HGetAll(t.Context(), name).Result()
			require.NoError(t, err)
			all = append(all, fields)
		}
		return all
	}
	before := dump()
	told := make(chan store.StoreEvent, 100)
	s := redisstore.New(client, redisstore.Config{Timeout: time.Minute, Observe: func(e store.StoreEvent) { told <- e }})
	b, err := outbound.NewSharedBucket(s, "bucket", counter)
	require.NoError(t, err)
	for range 10 {
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		require.NoError(t, err)
	}
	state, err := b.State(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 10, state.Level, 0.1)
	require.NoError(t, b.SetLimits(t.Context(), counter))
	require.Equal(t, before, dump())
	require.Empty(t, told)
}
