package outboundtest

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// double is a key twice: in the store under examination, and as a state in memory that
// [leak.Op.Apply] computes for the times of the store's replies. A history does the same
// with both, and compares the replies.
type double struct {
	*exam
	r       *rand.Rand
	last    leak.Reply // the store's
	want    leak.Reply // the arithmetic's
	state   leak.Stored
	buckets [2]*outbound.Bucket
	permits [2][]outbound.Permit
	tickets [2][]outbound.Ticket
	asked   [2]int
}

type storeFunc func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error)

func (f storeFunc) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	return f(ctx, key, op)
}

// history draws anything that can be done with a few keys, the same each time.
func (e *exam) history() {
	for seed := range uint64(4) {
		d := &double{exam: e, r: rand.New(rand.NewPCG(7, seed))}
		limits := []outbound.Limit{{Capacity: 10, LeakRate: 2}, {Capacity: 30, LeakRate: 1, Unit: 1, Name: "tokens"}}
		key := e.key()
		for i, update := range []storeFunc{d.store, d.compute} {
			b, err := outbound.NewSharedBucket(update, key, limits...)
			if err != nil {
				e.Fatal(err)
			}
			d.buckets[i] = b
		}
		for step := range 70 {
			if e.hooks.Reopen != nil && d.r.IntN(2) == 0 {
				e.store = e.hooks.Reopen(e.store)
			}
			what, ok := d.step(step)
			if !ok || !d.same(what) {
				return
			}
		}
	}
}

func (d *double) store(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	r, err := d.exam.store.Update(ctx, key, op)
	d.last = r
	d.asked[0]++
	r.When, r.Heard = time.Time{}, time.Time{} // no answer is late, however busy the machine is
	return r, err
}

func (d *double) compute(_ context.Context, _ string, op *leak.Op) (leak.Reply, error) {
	d.want = op.Apply(&d.state, d.last.State.At)
	d.asked[1]++
	return d.want, nil
}

// both does something with both, and reports whether they had room for it.
func (d *double) both(do func(side int, b *outbound.Bucket) error) (room, ok bool) {
	var errs [2]error
	for side, b := range d.buckets {
		errs[side] = do(side, b)
		if err := errs[side]; err != nil && !errors.Is(err, outbound.ErrThrottled) && !errors.Is(err, outbound.ErrTooLarge) {
			d.failf("%v", err)
			return false, false
		}
	}
	if (errs[0] == nil) != (errs[1] == nil) {
		d.failf("answered with %v, want %v", errs[0], errs[1])
		return false, false
	}
	return errs[0] == nil, true
}

// first is how each history begins, so that a store has to remember a return, a capacity
// that was larger, and limits that were set.
var first = []string{"acquire", "acquire", "settle last", "settle", "fill", "lower", "resume", "ticket", "hold", "wait", "ticket", "back", "raise"}

// step does the next thing, and returns what that was.
func (d *double) step(i int) (what string, ok bool) {
	ops := []string{
		"acquire", "acquire", "acquire", "ticket", "ticket", "back", "back first", "settle", "settle", "settle last", "done", "done",
		"refused", "hold", "wait", "wait", "wait", "fill", "resume", "lower", "raise",
	}
	what = ops[d.r.IntN(len(ops))]
	if i < len(first) {
		what = first[i]
	}
	pick := 0 // of the permits
	if n := len(d.permits[0]); n > 0 {
		pick = d.r.IntN(n)
		switch what {
		case "settle last":
			pick = n - 1
		case "settle":
			if i < len(first) {
				pick = 0
			}
		}
	}
	cost := outbound.Cost{float64(1 + d.r.IntN(4)), float64(d.r.IntN(9))}
	used := outbound.Cost{float64(d.r.IntN(3)), float64(d.r.IntN(9))}
	hold := time.Duration(1+d.r.IntN(8)) * time.Millisecond
	if i < len(first) {
		used = outbound.Cost{}
	}
	ok = true
	switch what {
	case "acquire":
		_, ok = d.both(func(side int, b *outbound.Bucket) error {
			p, err := b.Acquire(bg, cost)
			if err == nil {
				d.permits[side] = append(d.permits[side], p)
			}
			return err
		})
	case "ticket":
		_, ok = d.both(func(side int, b *outbound.Bucket) error {
			k := outbound.Booking{Costs: []outbound.Cost{cost}, Wait: 1000 * time.Hour}
			err := b.Book(bg, &k)
			d.tickets[side] = append(d.tickets[side], k.Tickets...)
			return err
		})
	case "back", "back first":
		// While the clock is slowed it shows no whole nanoseconds, and rounding may
		// decide which booking is the latest.
		if n := len(d.tickets[0]); n > 0 && len(d.tickets[1]) == n && d.want.State.Speed == 1 {
			k := n - 1
			if what == "back first" {
				k = 0
			}
			_, ok = d.both(func(side int, b *outbound.Bucket) error {
				t := d.tickets[side][k]
				d.tickets[side] = append(d.tickets[side][:k], d.tickets[side][k+1:]...)
				return b.Book(bg, &outbound.Booking{Back: []outbound.Ticket{t}})
			})
		}
	case "settle", "settle last", "done", "refused":
		if len(d.permits[0]) == 0 || len(d.permits[0]) != len(d.permits[1]) {
			return what, true
		}
		for side := range d.buckets {
			switch p := &d.permits[side][pick]; what {
			case "done":
				p.Done()
				d.permits[side] = append(d.permits[side][:pick], d.permits[side][pick+1:]...)
			case "refused":
				p.Refused(hold)
			default:
				p.Settle(used)
			}
		}
	case "hold":
		_, ok = d.both(func(_ int, b *outbound.Bucket) error { return b.Hold(bg, hold) })
	case "wait":
		time.Sleep(hold + time.Duration(d.r.IntN(5000))*time.Microsecond)
	case "fill":
		_, ok = d.both(func(_ int, b *outbound.Bucket) error { _, err := b.Fillup(bg, outbound.Cost{10, 7}); return err })
	case "resume":
		_, ok = d.both(func(_ int, b *outbound.Bucket) error { return b.Resume(bg) })
	case "lower", "raise":
		if d.want.State.Last > 0 {
			// A store may find a limit at the brim of the last booking a hair below it,
			// and fill it anew.
			return what, true
		}
		l := outbound.Limit{Capacity: 4, LeakRate: 3}
		if what == "raise" {
			l = outbound.Limit{Capacity: 12, LeakRate: 2}
		}
		_, ok = d.both(func(_ int, b *outbound.Bucket) error {
			return b.SetLimits(bg, l, outbound.Limit{Capacity: 30, LeakRate: 1, Unit: 1, Name: "tokens"})
		})
	}
	if ok { // look at the result
		_, ok = d.both(func(_ int, b *outbound.Bucket) error { _, err := b.State(bg); return err })
	}
	return what, ok
}

// same compares the last answers. A store may keep microseconds.
func (d *double) same(what string) bool {
	got, want := &d.last, &d.want
	if d.asked[0] != d.asked[1] {
		d.failf("after %s: the store was asked %d times, the arithmetic %d times", what, d.asked[0], d.asked[1])
		return false
	}
	g, w := &got.State, &want.State
	near := func(a, b time.Duration) bool { return a-b < 20*time.Microsecond && b-a < 20*time.Microsecond }
	if got.Version != want.Version || len(got.Limits) != len(want.Limits) || g.Fails != w.Fails || math.Abs(g.Speed-w.Speed) > 1e-6 ||
		!near(g.Dial(), w.Dial()) || !near(g.Last, w.Last) || !near(g.Rem, w.Rem) {
		d.failf("after %s: version %d, %d limits, dial %v, last booking %v from now, hold %v, speed %v, %d fails; want %d, %d, %v, %v, %v, %v, %d", what,
			got.Version, len(got.Limits), g.Dial(), g.Last, g.Rem, g.Speed, g.Fails, want.Version, len(want.Limits), w.Dial(), w.Last, w.Rem, w.Speed, w.Fails)
		return false
	}
	for i := range want.Limits {
		if a, b := g.Level[i].Level, w.Level[i].Level; !(math.Abs(a-b) < 1e-3) {
			d.failf("after %s: %v has level %v, want %v", what, want.Limits[i], a, b)
			return false
		}
	}
	return true
}
