package redisstore_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
)

// trace is a random schedule of twins, drawn from a seed.
type trace struct {
	*twins
	r       *rand.Rand
	limits  []outbound.Limit
	kinds   bool // some of them may be windows and calendars
	permits []*permits
	steps   int
	events  int           // holds, slow-downs and the like still to come: most traces have few
	storm   int           // refusals still to come one after the other, each after a success
	last    func() string // describes the last step
}

// permits are the permits of one call on both sides.
type permits struct {
	worker  int
	cost    outbound.Cost
	tickets [2]outbound.Ticket
	permits [2]outbound.Permit
	booked  bool // the call has tickets
	used    bool // the ticket has become a permit
}

// permit turns the ticket into a permit, unless it is one already.
func (p *permits) permit(side int) *outbound.Permit {
	if p.booked && !p.used {
		for i := range p.permits {
			p.permits[i] = p.tickets[i].Permit()
		}
		p.used = true
	}
	return &p.permits[side]
}

var background = context.Background()

// newTrace makes a trace on stores. rdb is the client of a server; nil: they have none.
func newTrace(seed uint64, key string, stores []leak.Store, rdb *redis.Client, latest func() time.Duration) *trace {
	t := &trace{r: rand.New(rand.NewPCG(seed, 4711))}
	t.kinds = t.r.IntN(2) == 0
	t.limits = t.someLimits()
	t.events = t.r.IntN(6) * t.r.IntN(6)
	if t.r.IntN(4) == 0 {
		t.storm = 200
	}
	t.twins = newTwins(key, stores[:1+t.r.IntN(len(stores))], latest, t.limits...)
	if t.kinds && rdb != nil { // memory does not tell of its logs; its places are those of the arithmetic
		t.logs = func() (*leak.Logs, error) { return logsOf(rdb, stores[0].(*redisstore.Store), key) }
	}
	return t
}

// someLimits draws one to four limits. Some of them count the same unit.
func (t *trace) someLimits() []outbound.Limit {
	shapes := []outbound.Limit{
		{Capacity: 1, LeakRate: 1}, {Capacity: 3, LeakRate: 10}, {Capacity: 40, LeakRate: 2}, {Capacity: 2.5, LeakRate: 1.25},
		{Capacity: 1000, LeakRate: 100}, {Capacity: 10, LeakRate: 7}, {Capacity: 1, LeakRate: 1000}, {Capacity: 100, LeakRate: 1e5},
		outbound.PerMinute(61), outbound.PerSecond(100).Burst(7), outbound.PerHour(1000).Burst(3), {Capacity: 1e6, LeakRate: 3e4},
		{Capacity: 0.25, LeakRate: 1. / 3}, {Capacity: 7, LeakRate: 0.001},
	}
	var limits []outbound.Limit
	for i := range 1 + t.r.IntN(4)*t.r.IntN(2) {
		unit := t.r.IntN(len(outbound.Cost{}))
		if i == 0 && t.r.IntN(4) > 0 {
			unit = 0
		}
		l := shapes[t.r.IntN(len(shapes))]
		if t.kinds && t.r.IntN(2) == 0 {
			l = t.someKind()
		}
		limits = append(limits, l.Of(unit, []string{"", "second", "third", "fourth"}[i]))
	}
	t.r.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	return limits
}

// cost draws a cost that mostly fits.
func (t *trace) cost() (c outbound.Cost) {
	part := t.r.Float64() * t.r.Float64()
	if t.r.IntN(4) == 0 {
		part = 1
	}
	for i := range t.limits {
		l := &t.limits[i]
		n := l.Capacity * part
		if l.Capacity >= 3 {
			n = math.Ceil(n)
		} else {
			n = math.Ceil(n*4) / 4
		}
		if t.r.IntN(5) == 0 {
			n = 0
		}
		if c[l.Unit] == 0 || n < c[l.Unit] {
			c[l.Unit] = n
		}
	}
	switch t.r.IntN(60) {
	case 0:
		c[t.r.IntN(len(outbound.Cost{}))] *= 3
	case 1:
		c[t.r.IntN(len(outbound.Cost{}))] *= 1e-12
	}
	return c
}

// wait draws a duration, of all lengths.
func (t *trace) wait() time.Duration {
	l := &t.limits[t.r.IntN(len(t.limits))]
	switch d := time.Duration(drainOf(l) * 1e9); t.r.IntN(8) {
	case 0:
		return 0
	case 1:
		return time.Duration(t.r.IntN(3000))
	case 2:
		return max(0, t.got.Wait+time.Duration(t.r.IntN(3)-1))
	case 3:
		return time.Duration(t.r.IntN(1e9))
	case 4:
		return math.MaxInt64
	default:
		return time.Duration(t.r.ExpFloat64() * float64(d) / 2)
	}
}

// pick returns one of the youngest permits, or nil.
func (t *trace) pick() *permits {
	k := len(t.permits)
	if k == 0 || t.r.IntN(10) == 0 {
		return nil
	}
	return t.permits[k-1-t.r.IntN(min(1+t.r.IntN(8), k))]
}

func (t *trace) drop(p *permits) {
	t.permits = slices.DeleteFunc(t.permits, func(q *permits) bool { return p == q })
}

// step does the same random thing on both sides, and returns the first difference.
func (t *trace) step() error {
	t.steps++
	before := t.asked
	if err := t.act(); err != nil {
		return fmt.Errorf("step %d, %s: %w", t.steps, t.last(), err)
	}
	if t.asked == before {
		t.steps-- // nothing was done
	}
	return nil
}

func (t *trace) act() error {
	worker := t.r.IntN(len(t.left))
	p := t.pick()
	if p != nil {
		worker = p.worker
	}
	if t.storm > 0 && t.r.IntN(4) > 0 {
		t.storm--
		return t.refuse(worker)
	}
	event := t.events > 0
	switch op := t.r.IntN(100); {
	case op < 22:
		return t.acquire(worker)
	case op < 48:
		return t.book(worker, p)
	case op < 66 && p != nil:
		used := t.cost()
		if t.r.IntN(2) == 0 {
			used = outbound.Cost{}
		}
		for i := range used {
			if t.r.IntN(3) == 0 {
				used[i] = p.cost[i]
			}
		}
		t.last = func() string { return fmt.Sprint("settle ", p.cost, " to ", used) }
		return t.both(worker, func(side int, _ *outbound.Bucket) error { p.permit(side).Settle(used); return nil })
	case op < 76 && p != nil:
		t.last = func() string { return "done" }
		t.drop(p)
		// The first success after a hold goes at once, and others go with the next
		// operation.
		if err := t.both(worker, func(side int, _ *outbound.Bucket) error { p.permit(side).Done(); return nil }); err != nil {
			return err
		}
		return t.both(worker, func(_ int, b *outbound.Bucket) error { _, err := b.State(background); return err })
	case op < 82:
		c := t.cost()
		t.last = func() string { return fmt.Sprint("fillup ", c) }
		return t.both(worker, func(_ int, b *outbound.Bucket) error { _, err := b.Fillup(background, c); return err })
	case op < 90 && event:
		return t.event(worker, p)
	case op < 92 && event:
		return t.setLimits(worker)
	case op < 93 && t.got.State.Rem < -time.Second:
		t.events += t.r.IntN(3)
	}
	t.last = func() string { return "state" }
	return t.both(worker, func(_ int, b *outbound.Bucket) error { _, err := b.State(background); return err })
}

func (t *trace) acquire(worker int) error {
	c := t.cost()
	t.last = func() string { return fmt.Sprint("acquire ", c) }
	p := &permits{worker: worker, cost: c}
	got := false
	err := t.both(worker, func(side int, b *outbound.Bucket) (err error) {
		p.permits[side], err = b.Acquire(background, c)
		got = err == nil
		return err
	})
	if got {
		t.permits = append(t.permits, p)
	}
	return err
}

// book books a batch, and gives tickets back or moves one.
func (t *trace) book(worker int, p *permits) error {
	var costs []outbound.Cost
	for range t.r.IntN(4) {
		c := t.cost()
		if t.r.IntN(4) == 0 {
			c = outbound.Cost{1}
		}
		for range 1 + t.r.IntN(3)*t.r.IntN(20) {
			costs = append(costs, c)
		}
	}
	wait, horizon := t.wait(), t.wait()
	if t.r.IntN(3) == 0 {
		wait, horizon = 0, 0
	}
	var after time.Duration
	if t.r.IntN(4) == 0 {
		after = min(t.wait(), wait, time.Hour)
	}
	var claim float64
	if t.r.IntN(3) == 0 {
		claim = []float64{1, t.model.Lead, t.model.Lead + 1, t.model.Lead * t.r.Float64(), math.MaxFloat64, 1e15}[t.r.IntN(6)]
	}
	var back []*permits
	var move *permits
	switch t.r.IntN(6) {
	case 0, 1:
		for _, q := range t.permits[max(0, len(t.permits)-t.r.IntN(6)):] {
			if q.booked && !q.used && q.worker == worker && t.r.IntN(6) > 0 {
				back = append(back, q)
			}
		}
	case 2:
		if p != nil && p.booked && !p.used {
			move = p
			costs = append([]outbound.Cost{p.cost}, costs[:min(1, len(costs))]...)
		}
	}
	t.last = func() string {
		return fmt.Sprintf("book %v after %v within %v and %v, claim %v, back %d, move %v", costs, after, wait, horizon, claim, len(back), move != nil)
	}
	var made [2][]outbound.Ticket
	err := t.both(worker, func(side int, b *outbound.Bucket) error {
		k := outbound.Booking{Costs: costs, Wait: wait, Horizon: horizon, After: after, Claim: claim}
		for _, q := range back {
			k.Back = append(k.Back, q.tickets[side])
		}
		if move != nil {
			k.Move = move.tickets[side]
		}
		err := b.Book(background, &k)
		made[side] = k.Tickets
		return err
	})
	for _, q := range back {
		t.drop(q)
	}
	if move != nil && len(made[0]) > 0 {
		t.drop(move)
	}
	for i := range min(len(made[0]), len(made[1])) {
		t.permits = append(t.permits, &permits{worker: worker, cost: costs[i], tickets: [2]outbound.Ticket{made[0][i], made[1][i]}, booked: true})
	}
	return err
}
