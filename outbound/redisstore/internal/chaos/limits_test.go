//go:build linux

package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// One of four workers changes the limits while all of them call. From then on the new
// limits count for all, and the bucket keeps its content.
func TestLimitsThatAreChangedUnderLoadCountForAll(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	f := newFleet(t, outbound.Limit{Capacity: 10, LeakRate: 100})
	f.addSome(4, func() redis.UniversalClient { return server.Client(t) }, role{})
	f.goesOn(20)
	type phase struct {
		limit    outbound.Limit
		from, to time.Time
	}
	phases := []phase{{limit: f.limit, from: time.Now()}}
	for _, l := range []outbound.Limit{
		{Capacity: 20, LeakRate: 300}, {Capacity: 4, LeakRate: 50}, {Capacity: 40, LeakRate: 20}, {Capacity: 5, LeakRate: 200},
	} {
		f.run(d.between(300*time.Millisecond, 600*time.Millisecond))
		phases[len(phases)-1].to = time.Now()
		require.NoError(t, f.members[d.IntN(4)].bucket.SetLimits(t.Context(), l))
		phases = append(phases, phase{limit: l, from: time.Now()})
		f.goesOn(1)
	}
	f.run(300 * time.Millisecond)
	phases[len(phases)-1].to = time.Now()
	f.stop()
	require.Len(t, f.lives(), 1, "a change of limits is no new life")
	before := 0.
	for _, p := range phases {
		var h outboundtest.History
		for at := range f.api.Arrivals().All() {
			if !at.Before(p.from) && at.Before(p.to) {
				h.Add(at, 1)
			}
		}
		// The bucket's content may have been above the new limit when it changed, once.
		f.checkCalls(&h, p.limit, max(0, before-p.limit.Capacity))
		before = max(p.limit.Capacity, before-p.limit.LeakRate*p.to.Sub(p.from).Seconds())
	}
	for _, m := range f.members {
		s, err := m.bucket.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, phases[len(phases)-1].limit, s.Limit)
	}
}

// Changing a rate again and again does not refill the bucket.
func TestLimitsThatAreChangedOftenRefillNothing(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	f := newFleet(t, outbound.Limit{Capacity: 20, LeakRate: 50})
	f.addSome(3, func() redis.UniversalClient { return server.Client(t) }, role{})
	f.goesOn(30)
	for i := range 10 {
		f.run(d.between(20*time.Millisecond, 100*time.Millisecond))
		l := f.limit
		l.LeakRate -= 5 * float64(i%2)
		require.NoError(t, f.members[d.IntN(3)].bucket.SetLimits(t.Context(), l))
	}
	f.goesOn(1)
	f.check(0)
}

// Two workers of an old release have other limits than two workers of a new one. All of
// them go on, each within its own limit, and each is told of the difference.
func TestWorkersWhoDisagreeAreEachHeldToTheirOwnLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	loose, strict := outbound.Limit{Capacity: 10, LeakRate: 100}, outbound.Limit{Capacity: 4, LeakRate: 40}
	f := newFleet(t, loose)
	f.addSome(2, func() redis.UniversalClient { return server.Client(t) }, role{})
	f.addSome(2, func() redis.UniversalClient { return server.Client(t) }, role{limit: &strict})
	for _, m := range f.members {
		goesOn(t, &m.calls, 5)
	}
	f.run(time.Second)
	f.stop()
	var of [2]outboundtest.History
	for i, m := range f.members {
		for at := range m.calls.All() {
			of[i/2].Add(at, 1)
		}
	}
	f.checkCalls(&of[0], loose, 0)
	f.checkCalls(&of[1], strict, 0)
	f.checkCalls(f.api.Arrivals(), outbound.Limit{Capacity: loose.Capacity + strict.Capacity, LeakRate: loose.LeakRate + strict.LeakRate}, 0)
	require.Positive(t, f.heard(redisstore.EventDiffer), "nobody was told")
}

// Keys of another version's format lie beside ours. The store neither reads nor changes
// them.
func TestAnotherFormatsKeysAreNotTouched(t *testing.T) {
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
	told := make(chan redisstore.Event, 100)
	s := redisstore.New(client, redisstore.Config{Observe: func(e redisstore.Event) { told <- e }})
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
