package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requests plays n requests, each 10 ms after the one before. It calls check for each reply, with the
// time by which the estimate lies before the reply was written, with the latency of the reply, and
// with the latency that lay takes for normal.
func (o *clockOffset) requests(n int, way func(i int) (there, back time.Duration), check func(i int, behind, back, normal time.Duration)) {
	now := start
	for i := range n {
		there, back := way(i)
		wrote := now.Add(there)
		arrived := wrote.Add(back)
		when, received := o.lay(time.Hour+wrote.Sub(start), time.Hour+wrote.Sub(start), now, arrived)
		check(i, wrote.Sub(when), back, received.Sub(when))
		now = arrived.Add(10 * time.Millisecond)
	}
}

const ms = time.Millisecond

// The first request may open a connection: the estimate is better from the second one on.
func TestClockOffset_FirstReplyMayBeSlow(t *testing.T) {
	new(clockOffset).requests(20, func(i int) (there, back time.Duration) {
		if i == 0 {
			return 700 * ms, 100 * ms
		}
		return 100 * ms, 100 * ms
	}, func(i int, behind, _, normal time.Duration) {
		if i == 0 { // reservations look due earlier than they are, and callers return them
			require.Equal(t, 300*ms, behind)
			return
		}
		require.Zero(t, behind)
		require.GreaterOrEqual(t, normal, 100*ms)
		require.LessOrEqual(t, normal, 150*ms)
	})
}

// At most 3 % of the replies come later than what the estimate takes for normal.
func TestClockOffset_MostRepliesArriveByTheirNormalTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, way := range []time.Duration{ms / 20, ms, 10 * ms, 100 * ms} {
		late := 0
		jitter := func() time.Duration { return way + time.Duration(r.Float64()*float64(way/5)) }
		new(clockOffset).requests(1000, func(i int) (there, back time.Duration) {
			there, back = jitter(), jitter()
			if r.IntN(20) == 0 {
				back += 300 * ms
			}
			return
		}, func(i int, behind, back, normal time.Duration) {
			if i < 100 { // the bounds are not narrow yet
				return
			}
			require.Less(t, max(behind, -behind), way/20+ms/10, "%v away", way)
			require.Less(t, normal, 4*way, "%v away: what is late is not learned", way)
			if back < 300*ms && behind+back > normal {
				late++
			}
		})
		require.Less(t, late, 30, "%v away", way)
	}
}

// A route may become longer permanently.
func TestClockOffset_LearnsALongerRoute(t *testing.T) {
	o := new(clockOffset)
	o.requests(200, func(i int) (there, back time.Duration) {
		if i < 100 { // the bounds are not narrow yet
			return ms, ms
		}
		return 100 * ms, 100 * ms
	}, func(i int, _, _, normal time.Duration) {
		if i > 140 {
			require.GreaterOrEqual(t, normal, 100*ms)
		}
	})
}
