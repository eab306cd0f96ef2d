package rollouttest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Changes are random histories of three processes that share a key, and change its limits between
// each other's calls: their numbers, units, kinds, names, order and how many there are.
type Changes struct {
	// Fleet opens the store of each process.
	*Fleet
	// Second is how long a second of the history takes.
	Second time.Duration
	// Remembers is true if the store remembers refusals.
	Remembers bool
	// Exact is true if calls leave when the store admits them, as in virtual time.
	Exact bool
}

// changing is one history.
type changing struct {
	*Changes
	testing.TB
	*rand.Rand
	seed      uint64
	shapes    []shape // of the latest limits
	slots     bool    // the buckets have an InFlight
	versions  int     // of the limits of processes that start: 0 and below this
	processes [3]*member
	waiting   sync.WaitGroup
	lined     atomic.Int64 // calls in queues

	mu       sync.Mutex // protects what follows
	inForce  []version
	at, born time.Duration // the store's time of the latest reply, and the key's life
	left     []*departure
	used     int // calls in flight
	most     int // the largest limit on these so far
	actions  []string
	failed   bool
}

// version is limits that were in force from a time on.
type version struct {
	law    []store.Limit
	number int64
}

// departure is a call that has left.
type departure struct {
	at      time.Time
	used    outbound.Cost
	version int
	waited  bool // it may have been booked by earlier limits
}

// member is a process of a history.
type member struct {
	*process
	of      *changing
	booking // the latest

	bucket    *outbound.Bucket
	queue     *queue.Queue // around a bucket of its own
	scheduler *jobs.Scheduler
	calls     []*held
	booked    []outbound.Ticket
	reserved  []reserved
}

// booking is when a call is due, by the store's clock, and the version of the limits.
type booking struct {
	due time.Duration
	by  int
}

// bookingKey is the key of a context with the *booking of an Acquire.
type bookingKey struct{}

// reserved is a reservation that was not used.
type reserved struct {
	*outbound.Reservation
	cost outbound.Cost
}

// held is a permit that has not ended.
type held struct {
	outbound.Permit
	cost outbound.Cost
	left *departure
}

// Update implements [store.Store], and notes which limits a reply counts by.
func (m *member) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := m.process.Update(ctx, key, op)
	c := m.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || op.Action == store.Allot || key != c.key() {
		return r, err
	}
	law := r.Limits
	if law == nil {
		law = op.Limits
	}
	counts := func(v version) bool { return v.number == r.Number && store.Equal(v.law, law) }
	// A look at a key that is not kept makes it for itself only, and a booking of the same moment makes another.
	newest := r.State.At >= c.at || len(c.inForce) > 0 && r.State.Born == c.born && r.Number > c.now().number || c.Exact && len(r.Charges) > 0 && !slices.ContainsFunc(c.inForce, counts)
	if r.Number > 0 && newest {
		same := r.State.Born == c.born && r.State.At > c.at
		c.at, c.born = r.State.At, r.State.Born
		if len(c.inForce) == 0 || !counts(*c.now()) {
			if v := versionOf(law); c.Exact && same && len(c.inForce) > 0 && v < versionOf(c.now().law) {
				c.Errorf("DRIPFEED_SEED=%d: version %d is in force after %v\n%q", c.seed, v, c.now().law, c.actions)
			}
			c.inForce = append(c.inForce, version{law, r.Number})
		}
	}
	if len(r.Charges) > 0 {
		in, late := r.State.Due(r.Charges[0].Place)
		m.booking = booking{r.State.At + in - late, -1}
		for i := range c.inForce {
			if counts(c.inForce[i]) {
				m.by = i
			}
		}
		if own, ok := ctx.Value(bookingKey{}).(*booking); ok {
			*own = m.booking
		}
	}
	return r, err
}

func versionOf(law []store.Limit) int32 {
	return slices.MaxFunc(law, func(a, b store.Limit) int { return int(a.Version - b.Version) }).Version
}

func (c *changing) key() string   { return fmt.Sprint("changes ", c.seed) }
func (c *changing) now() *version { return &c.inForce[len(c.inForce)-1] }

// errorf fails the test with the history's actions.
func (c *changing) errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failed {
		c.Errorf("DRIPFEED_SEED=%d: "+format+"\n%q", append(append([]any{c.seed}, args...), c.actions)...)
	}
	c.failed = true
}

// seconds returns so many seconds of the history.
func (c *changing) seconds(n float64) time.Duration {
	return time.Duration(n * float64(c.Second))
}

// limits returns limits at random, often those before with other numbers. The names are few, so that
// many limits stay in a change.
func (c *changing) limits() []outbound.Limit {
	for {
		number, of := c.IntN(2) == 0, c.shapes
		if !number {
			of = make([]shape, 1+c.IntN(3))
			for i := range of {
				of[i] = shape{c.IntN(8), c.IntN(3), []string{"", "a", "b", "c"}[c.IntN(4)]}
			}
		}
		var all []outbound.Limit
		for _, s := range of {
			n, d := float64(1+c.IntN(12)), c.seconds(0.1+2*c.Float64())
			l := outbound.Limit{Capacity: n, LeakRate: (0.5 + 10*c.Float64()) / c.Second.Seconds()}
			switch s.kind {
			case 0, 1:
				l = outbound.Window(n, d)
			case 2:
				l = outbound.FixedWindow(n, d)
			case 3:
				l = outbound.Hourly(5 * n)
			}
			all = append(all, l.Of(s.unit, s.name))
		}
		if _, err := outbound.NewBucket("", all...); err == nil {
			c.shapes = of
			return all
		}
	}
}

// shape is a limit without its numbers.
type shape struct {
	kind, unit int
	name       string
}

// inFlight returns a limit on calls in flight.
func (c *changing) inFlight() outbound.Limit {
	n := 1 + c.IntN(5)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most = max(c.most, n)
	return outbound.InFlight(n)
}

// start starts process i, with other limits than those in force.
func (c *changing) start(i int) {
	m := &member{of: c, process: c.Fleet.start(c, fmt.Sprint(i))}
	other := *m
	all := c.limits()
	if c.slots {
		all = append(all, c.inFlight())
	}
	all[0].Version = c.IntN(c.versions)
	b, err := outbound.NewSharedBucket(&other, c.key(), all...)
	if err != nil {
		c.Fatal(err)
	}
	m.bucket, m.queue = outbound.Must(outbound.NewSharedBucket(m, c.key(), all...)), queue.New(b, queue.Config{MaxWait: c.seconds(5)})
	m.scheduler = jobs.New(b, jobs.Config{PollInterval: c.seconds(2), HeadStart: c.seconds(0.1)})
	if old := c.processes[i]; old != nil {
		m.calls, old.calls = old.calls, nil // they end some time
		c.stop(old)
	}
	c.processes[i] = m
}

var bg = context.Background()

// cost returns a cost at random: some are invalid by some limits, or above some capacities.
func (c *changing) cost() (k outbound.Cost) {
	for i := range k[:3] {
		k[i] = float64(c.IntN(8))
		switch c.IntN(20) {
		case 0:
			k[i] = outbound.Free
		case 1:
			k[i] = 1e-9
		case 2:
			k[i] = 13
		}
	}
	return k
}

// since returns the index of the limits in force.
func (c *changing) since() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.inForce) - 1
}

// leaves notes a call that was admitted by this booking, or by the latest if it is nil.
func (c *changing) leaves(m *member, p outbound.Permit, k outbound.Cost, own *booking) *held {
	c.mu.Lock()
	defer c.mu.Unlock()
	waited := own == nil
	if waited {
		own = &m.booking
	}
	for i := range k {
		k[i] = max(0, k[i])
	}
	d := &departure{at: time.Now(), used: k, version: own.by, waited: waited}
	if now := m.bucket.Limits(); len(now) == 1 && strings.HasSuffix(now[0].String(), "in flight") {
		d.version = -1 // a call in flight makes no request
	}
	if !c.Exact {
		d.at = time.Unix(0, 0).Add(own.due)
	}
	if c.Exact || !waited {
		c.left = append(c.left, d)
	}
	if c.used++; c.slots && c.used > c.most && !c.failed {
		c.failed = true
		c.Errorf("DRIPFEED_SEED=%d: %d calls are in flight, %d at most\n%q", c.seed, c.used, c.most, c.actions)
	}
	return &held{Permit: p, cost: k, left: d}
}

// end ends a call.
func (c *changing) end(h *held) {
	c.mu.Lock()
	c.used--
	c.mu.Unlock()
	h.Done()
}

// action does something in a process.
func (c *changing) action(m *member) {
	k, v := c.cost(), c.since()
	n, begin := c.IntN(27), time.Now()
	did := func(what string, args ...any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.actions = append(c.actions, m.name[:1]+" "+fmt.Sprintf(what, args...))
	}
	must := func(err error) {
		if err != nil {
			c.errorf("%v", err)
		}
	}
	switch n {
	case 0, 1, 2, 3:
		did("acquire %v", k)
		own := new(booking)
		p, err := m.bucket.Acquire(context.WithValue(bg, bookingKey{}, own), k)
		if c.judge("acquire", err, k, v); err == nil {
			m.calls = append(m.calls, c.leaves(m, p, k, own))
		}
	case 4:
		did("do %v", k)
		own := new(booking)
		err := outbound.Do(context.WithValue(bg, bookingKey{}, own), m.bucket, k, func(ctx context.Context) error {
			c.leaves(m, *outbound.PermitFrom(ctx), k, own)
			c.mu.Lock()
			c.used--
			c.mu.Unlock()
			return nil
		})
		c.judge("do", err, k, v)
	case 5, 6:
		did("reserve %v", k)
		r, err := m.bucket.Reserve(bg, k, c.seconds(4*c.Float64()))
		if c.judge("reserve", err, k, v); err == nil {
			m.reserved = append(m.reserved, reserved{r, k})
		}
	case 7, 8:
		if r := take(c, &m.reserved); r.Reservation != nil {
			if c.IntN(3) == 0 || time.Until(r.At()) > c.seconds(3) {
				did("cancel")
				r.Cancel()
				break
			}
			did("use the reservation in %v", time.Until(r.At()))
			time.Sleep(time.Until(r.At()))
			p, err := r.Permit(bg)
			if err == nil {
				m.calls = append(m.calls, c.leaves(m, p, r.cost, nil))
			} else {
				r.Cancel()
			}
		}
	case 9, 10, 11:
		did("wait for %v", k)
		c.lined.Add(1)
		c.waiting.Go(func() {
			p, err := m.queue.Acquire(bg, k)
			defer c.lined.Add(-1)
			if c.judge("wait", err, k, v); time.Since(begin) > c.seconds(5)+time.Minute {
				c.errorf("a call has waited for %v", time.Since(begin))
			}
			if err == nil {
				h := c.leaves(m, p, k, nil)
				time.Sleep(c.seconds(0.1))
				c.end(h)
			}
		})
	case 12:
		did("book 3 of %v, return %d", k, len(m.booked))
		b := outbound.BookRequest{Unused: m.booked, Costs: []outbound.Cost{k, k, k}, Wait: c.seconds(4), Horizon: c.seconds(8)}
		if len(m.booked) > 1 && c.IntN(2) == 0 {
			b.Unused, b.Move = m.booked[:len(m.booked)-1], m.booked[len(m.booked)-1]
		}
		move := b.Move
		err := m.bucket.Book(bg, &b)
		if c.judge("book", err, k, v); err == nil && len(b.Tickets) == 0 && move == (outbound.Ticket{}) {
			c.errorf("nothing was booked, without an error")
		}
		if m.booked = append([]outbound.Ticket(nil), b.Tickets...); len(b.Tickets) == 0 && move != (outbound.Ticket{}) {
			m.booked = append(m.booked, move) // it stays
		}
	case 13, 14, 15:
		if h := take(c, &m.calls); h != nil {
			used := h.cost
			for i := range used {
				used[i] = float64(int(used[i] * 1.5 * c.Float64()))
			}
			did("settle %v to %v", h.cost, used)
			h.Settle(used)
			c.mu.Lock()
			for i := range used {
				h.left.used[i] = min(used[i], h.cost[i]) // more is the caller's own
			}
			c.mu.Unlock()
			c.end(h)
		}
	case 16:
		if h := take(c, &m.calls); h != nil {
			d := c.seconds(c.Float64())
			did("refused %v", d)
			h.Refused(d)
			c.end(h)
		}
	case 17:
		did("hold or pause")
		if d := 1 + c.seconds(c.Float64()); c.IntN(2) == 0 {
			must(m.bucket.Hold(bg, d))
		} else {
			must(m.bucket.Pause(bg, d))
		}
	case 18:
		did("resume")
		must(m.bucket.Resume(bg))
	case 19:
		did("explain %v", k)
		e, err := m.queue.Explain(bg, k)
		if must(err); err == nil {
			_ = e.String()
			c.judge("explain", e.Err, k, v)
		}
		if ok, err := m.bucket.AbleToAccept(bg, k); err != nil || ok {
			c.judge("able to accept", err, k, v)
		}
	case 20:
		did("fillup and states")
		_, err := m.bucket.Fillup(bg, k)
		must(err)
		_, err = m.bucket.States(bg)
		must(err)
	case 21:
		did("schedule %v", k)
		if _, err := m.scheduler.Book(bg, k, k); err != nil && !c.slots {
			c.judge("schedule", err, k, v)
		}
	case 22:
		c.start(c.IntN(len(c.processes)))
		did("a process starts")
	case 23:
		did("own limits again")
		must(m.bucket.SetLimits(bg))
	default:
		all := c.limits()
		if c.slots && c.IntN(2) == 0 {
			all = append(all, c.inFlight())
			if c.IntN(8) == 0 {
				all = all[len(all)-1:]
			}
		}
		did("set %v", all)
		must(m.bucket.SetLimits(bg, all...))
	}
	if took := time.Since(begin); took > c.seconds(3)+20*time.Second {
		c.errorf("action %d took %v", n, took)
	}
}

// take takes an element out at random.
func take[T any](c *changing, of *[]T) (t T) {
	if n := len(*of); n > 0 {
		i := c.IntN(n)
		t = (*of)[i]
		*of = append((*of)[:i:i], (*of)[i+1:]...)
	}
	return t
}

// Play plays a history, and checks that no limit was exceeded.
func (f *Changes) Play(t testing.TB, seed uint64) {
	c := &changing{Changes: f, TB: t, Rand: rand.New(rand.NewPCG(seed, 0)), seed: seed, at: math.MinInt64}
	c.slots, c.versions = c.IntN(4) == 0, 1+c.IntN(3)
	for i := range c.processes {
		c.start(i)
	}
	for range 10 + c.IntN(50) {
		c.action(c.processes[c.IntN(len(c.processes))])
		if c.IntN(3) == 0 {
			time.Sleep(c.seconds(c.ExpFloat64() * 0.3))
		}
	}
	c.waiting.Wait()
	for _, m := range c.processes {
		c.stop(m)
	}
	if c.slots {
		c.idle()
	}
	c.lawful()
}

// idle checks that the last call leaves no slot in use. A bucket keeps one for a while after a Book
// that has found too few.
func (c *changing) idle() {
	var used []outbound.State
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		used = nil
		for _, m := range c.processes {
			all, err := m.bucket.States(bg)
			if err != nil {
				c.errorf("%v", err)
			}
			if last := all[max(0, len(all)-1):]; err == nil && strings.HasSuffix(last[0].Limit.String(), "in flight") && last[0].Level > 0 {
				used = append(used, last...)
			}
		}
		if used == nil {
			return
		}
	}
	c.errorf("after the last call: %v", used)
}

// stop ends what a process has.
func (c *changing) stop(m *member) {
	for _, h := range m.calls {
		c.end(h)
	}
	for _, r := range m.reserved {
		r.Cancel()
	}
	_ = m.bucket.Book(bg, &outbound.BookRequest{Unused: m.booked})
}

// PlayAll plays histories in virtual time, on a store of each world.
func PlayAll(t *testing.T, n int, remembers bool, world func() (open func() store.Store)) {
	seed := rand.Uint64() >> 1
	if s, err := strconv.ParseUint(os.Getenv("DRIPFEED_SEED"), 10, 64); err == nil {
		seed, n = s, 1
	}
	for ; n > 0 && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			defer time.Sleep(time.Minute) // until the goroutines of stores end
			open := world()
			f := &Changes{Fleet: &Fleet{Open: func(testing.TB) store.Store { return open() }}, Second: time.Second, Exact: true, Remembers: remembers}
			for range min(n, 100) {
				if n--; !t.Failed() {
					f.Play(t, seed)
					seed++
				}
			}
		})
	}
}

// PlayFor plays histories in real time, several at a time.
func (f *Fleet) PlayFor(t *testing.T, n int) {
	var all sync.WaitGroup
	seed := rand.Uint64() >> 1
	for i := range 16 {
		all.Go(func() {
			c := &Changes{Fleet: &Fleet{Open: f.Open}, Second: 20 * time.Millisecond, Remembers: true}
			for j := 0; j < n/16+1 && !t.Failed(); j++ {
				c.Play(t, seed+uint64(i*n+j))
			}
		})
	}
	all.Wait()
}
