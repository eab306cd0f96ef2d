//go:build linux

package chaos

import (
	crand "crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
)

// The test kills one of ten worker processes after the other, wherever it is, and
// starts another one. Its bookings are lost, and leak away; the others have the rate.
func TestKill_CostsOnlyReservations(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	limit := outbound.Limit{Capacity: 4, LeakRate: 200}
	c := newChildren(t, orders{
		Addr: server.Addr(), Key: "chaos " + crand.Text(), Callers: 2, Tolerance: 20 * time.Millisecond,
		Limits: []outbound.Limit{limit, outbound.Window(36, 200*time.Millisecond)}, // calls go for 160 ms, and then wait
	})
	for range 10 {
		c.add()
	}
	for _, one := range c.all {
		goesOn(t, &one.calls, 3)
	}
	time.Sleep(d.between(0, 200*time.Millisecond))
	goesOn(t, &c.calls, 100)
	began := wall(time.Now())
	var killed time.Time
	var victims []*child
	for range 12 {
		victim := c.all[d.IntN(len(c.all))]
		for slices.Contains(victims, victim) {
			victim = c.all[d.IntN(len(c.all))]
		}
		victims = append(victims, victim)
		killed = wall(time.Now())
		victim.kill()
		goesOn(t, &c.calls, 20)
		c.add()
		time.Sleep(d.between(100*time.Millisecond, 200*time.Millisecond))
	}
	// A machine that is too busy for the rate while none is killed judges no recovery, and one that stalls
	// later delays it: the queue's test of a killed process says how much a kill costs, in fake time.
	const window, near = 100 * time.Millisecond, 0.8
	all := times(&c.calls)
	before, _ := slices.BinarySearchFunc(all, began, time.Time.Compare)
	if recovery(all[:before], all[0], window, near*limit.LeakRate) >= 0 {
		eventually(t, "the rate is back after the last kill", func() bool {
			return recovery(times(&c.calls), killed, window, near*limit.LeakRate) >= 0
		})
	}
	goesOn(t, &c.calls, 50)
	c.check()
}

// One of two workers is paused, as by a debugger or on a suspended machine, for half a
// second and for five. Meanwhile its reservations come due, and the other worker has the
// rate. The paused worker does not make the missed calls in a bunch afterwards.
func TestPause_ProcessDoesNotCatchUp(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	c := newChildren(t, orders{
		Addr: server.Addr(), Key: "chaos " + crand.Text(), Callers: 64, Tolerance: 5 * time.Millisecond,
		Limits: []outbound.Limit{{Capacity: 10, LeakRate: 1000}, outbound.Window(190, 200*time.Millisecond)}, // calls wait for 30 ms at most
	})
	one, other := c.add(), c.add()
	for _, pause := range []time.Duration{500 * time.Millisecond, d.between(100*time.Millisecond, 500*time.Millisecond), 5 * time.Second} {
		goesOn(t, &one.calls, 20)
		goesOn(t, &other.calls, 20)
		time.Sleep(d.between(0, 100*time.Millisecond))
		n := other.calls.Len()
		c.pause(one, pause)
		if pause > time.Second { // a busy machine may keep it from the processor for less
			require.Greater(t, other.calls.Len(), n+10, "the other one stands still")
		}
		goesOn(t, &one.calls, 1)
	}
	goesOn(t, &one.calls, 20)
	time.Sleep(200 * time.Millisecond)
	c.end()
	most := 0
	for _, p := range one.pauses {
		n := one.beyond(p.to, c.orders.Tolerance)
		t.Logf("after a pause of %v %d calls went with places that were due in it", p.to.Sub(p.from).Round(time.Millisecond), n)
		// Calls that the queue had let go already, and that had not gone.
		require.LessOrEqual(t, n, 5)
		most = max(most, n)
	}
	c.checkAllowing(float64(most)) // no two pauses end within a window
}
