package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/engine"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// bg is the context of most calls.
var bg = context.Background()

// ages is a limit so slow that nothing leaks from it during a test.
var ages = store.Limit{Name: "calls", Capacity: 1e4, Rate: 1e-5}

// book asks for calls of these costs, now.
func book(l store.Limit, costs ...float64) *store.Op {
	op := &store.Op{Limits: []store.Limit{l}, Action: store.Book}
	for _, c := range costs {
		op.Costs = append(op.Costs, store.Units{c})
	}
	return op
}

// settle returns a report that the call of a charge has cost used.
func settle(c *store.Charge, used float64) []store.Report {
	return []store.Report{{Kind: store.Settled, Charge: c, Used: store.Units{used}}}
}

// ask makes a step of the key "key", which must succeed.
func ask(t *testing.T, e *engine.Engine, op *store.Op) store.Reply {
	t.Helper()
	r, err := e.Update(bg, "key", op)
	require.NoError(t, err)
	return r
}

// try asks for one call of a key.
func try(e *engine.Engine, key string) error {
	_, err := e.Update(bg, key, book(ages, 1))
	return err
}

// bubble runs a test in virtual time, and then gives the engine's idle goroutines time to end.
func bubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		f(t)
	})
}

// running is a bubble with an engine that is running, and its carrier.
func running(t *testing.T, timeout time.Duration, f func(t *testing.T, c *carrier, e *engine.Engine)) {
	bubble(t, func(t *testing.T) {
		c := newCarrier()
		f(t, c, c.start(timeout))
	})
}

// each runs work in n goroutines, and waits for them.
func each(n int, work func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// Errors of attempts. Each has its verdict: see carrier.Take.
var (
	errOlder  = errors.New("the store has lost data")
	errPassed = errors.New("a later trip of this process was carried out")
	errRace   = errors.New("other processes write the key again and again")
	errMoved  = errors.New("another node has the key")
	errDenied = errors.New("no permission")
	errBroken = errors.New("the store's own error")
	errLost   = errors.New("lost on the way")
	errSilent = errors.New("silent") // the attempt hangs until its ctx ends
)

// memory is the state of a store: keys, and the last trip of each carrier.
type memory struct {
	mu     sync.Mutex
	keys   map[string]*kept
	booked int  // calls
	bare   bool // a refusal leaves no record
}

// kept is the state of one key.
type kept struct {
	store.Stored
	last map[*carrier]recorded
}

type recorded struct {
	seq   int64
	reply store.Reply
}

// calls returns the number of booked calls.
func (s *memory) calls() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.booked)
}

// level returns the level of the first limit of a key.
func (s *memory) level(key string) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key].State.Level[0]
}

// carrier is the carrier of one process to a memory of one or two nodes, a and b. A test changes it
// by set.
type carrier struct {
	*memory
	apart bool // a key that loses a race goes apart

	mu           sync.Mutex    // protects what follows
	hung         chan struct{} // until it is closed, node a answers nothing, whatever the ctx; or nil
	fails        error         // every attempt fails with it, or nil
	send         func(ctx context.Context, todo []engine.Attempt)
	owner, known string                  // the node that has the keys, and what the client takes for it
	learns       bool                    // a Refresh reports the owner to the client
	nodeOf       func(key string) string // the node of a key, in place of known
	now, most    int                     // Sends at the same time
	sends        int
	events       []store.StoreEvent
	observed     func() // is called after each event, or nil
}

func newCarrier() *carrier {
	return &carrier{memory: &memory{keys: make(map[string]*kept)}}
}

// other returns the carrier of another process.
func (c *carrier) other() *carrier { return &carrier{memory: c.memory} }

// start returns an engine whose events the carrier keeps.
func (c *carrier) start(timeout time.Duration) *engine.Engine {
	config := engine.Config{Name: "memory", Carrier: c, Timeout: timeout, Observe: func(e store.StoreEvent) {
		c.set(func() { c.events = append(c.events, e) })
		if c.observed != nil {
			c.observed()
		}
	}}
	if c.owner != "" {
		config.Nodes = &engine.Nodes{Known: c.node, Refresh: func() {
			c.set(func() {
				if c.learns {
					c.known = c.owner
				}
			})
		}}
	}
	return engine.New(config)
}

func (c *carrier) node(key string) (node string) {
	c.set(func() {
		if node = c.known; c.nodeOf != nil {
			node = c.nodeOf(key)
		}
	})
	return node
}

// reported returns the kinds of the events so far.
func (c *carrier) reported() (kinds []store.StoreEventKind) {
	synctest.Wait()
	for _, e := range c.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (c *carrier) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// hang has node a answer nothing until free is called.
func (c *carrier) hang() (free func()) {
	hung := make(chan struct{})
	c.set(func() { c.hung = hung })
	return func() {
		c.set(func() { c.hung = nil })
		close(hung)
	}
}

// late has the first attempt at a trip, or all of them, arrive when free is called, whatever its
// ctx. Its other attempts fail with others, or are carried out.
func (c *carrier) late(seq int64, all bool, others error) (free func()) {
	arrive, sent := make(chan struct{}), false
	c.send = func(_ context.Context, todo []engine.Attempt) {
		if a := &todo[0]; a.Seq == seq {
			waits := all
			c.set(func() { waits, sent = waits || !sent, true })
			if waits {
				<-arrive
			} else if a.Err = others; others != nil {
				return
			}
		}
		c.carry(todo)
	}
	return func() { close(arrive) }
}

// answers has each attempt, with its index in its Send, answered as answer says, after 1 ms.
func (c *carrier) answers(answer func(i int, a *engine.Attempt) error) *carrier {
	c.send = func(ctx context.Context, todo []engine.Attempt) {
		time.Sleep(time.Millisecond)
		for i := range todo {
			a := &todo[i]
			switch a.Err = answer(i, a); a.Err {
			case nil:
				c.carry(todo[i : i+1])
			case errSilent:
				<-ctx.Done()
				a.Err = ctx.Err()
			}
		}
	}
	return c
}

// composed is the State of a trip.
type composed struct {
	at    time.Time
	apart bool
}

func (c *carrier) Compose(t *engine.Trip) { t.State = composed{time.Now(), t.Key.Apart} }

func (c *carrier) Unavailable(cause error) error {
	return engine.Unavailable("the store is away", cause)
}

func (c *carrier) Take(a *engine.Attempt) engine.Verdict {
	switch a.Err {
	case nil:
		a.Key.Apart = false
		return engine.Done
	case errRace:
		a.Key.Apart = c.apart
		return engine.Requeue
	case errOlder:
		return engine.Requeue
	case errMoved:
		return engine.Elsewhere
	case errDenied:
		return engine.Denied
	case errBroken:
		return engine.Failed
	}
	return engine.Later
}

func (c *carrier) Send(ctx context.Context, todo []engine.Attempt) {
	var hung chan struct{}
	var fails error
	var send func(context.Context, []engine.Attempt)
	c.set(func() {
		c.sends++
		c.now++
		c.most = max(c.most, c.now)
		if fails, send = c.fails, c.send; c.known != "b" {
			hung = c.hung
		}
		if fails == nil && c.known != c.owner {
			fails = errMoved
		}
	})
	if hung != nil {
		<-hung
	}
	switch {
	case fails != nil:
		for i := range todo {
			todo[i].Err = fails
		}
	case send != nil:
		send(ctx, todo)
	default:
		c.carry(todo)
	}
	c.set(func() { c.now-- })
}

// carry carries trips out, except those that it has carried out before.
func (c *carrier) carry(todo []engine.Attempt) {
	for i := range todo {
		a := &todo[i]
		a.Now = time.Duration(time.Now().UnixNano())
		c.carryOut(a)
	}
}

func (c *carrier) carryOut(a *engine.Attempt) {
	s := c.memory
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[a.Key.Bucket]
	if k == nil {
		k = &kept{last: make(map[*carrier]recorded)}
		s.keys[a.Key.Bucket] = k
	}
	was := k.last[c]
	if a.Recorded = was.seq; was.seq > 0 && was.seq < a.Last {
		a.Err = errOlder
		return
	}
	if a.Seq < was.seq {
		a.Err = errPassed
		return
	}
	if a.Seq > was.seq {
		op := a.Op
		op.Into = nil
		r := op.Apply(&k.Stored, a.Now)
		// A refusal leaves a record, because the lines of the tests repeat requests.
		if !r.Changed && !a.Fence && (s.bare || len(op.Costs) == 0) {
			a.Reply = r
			return
		}
		s.booked += len(r.Charges)
		was = recorded{a.Seq, r}
		k.last[c] = was
	}
	a.Reply, a.Keep = was.reply, time.Hour
	a.Reply.Charges = append(a.Into, was.reply.Charges...)
}

// badLine is a carrier on a bad line: the line loses requests and replies, repeats
// requests later, and delays both.
type badLine struct {
	engine.Carrier
	lost     float64       // share of the requests that are lost
	noReply  float64       // share of the replies that are lost
	repeated float64       // share of the requests that arrive a second time
	delay    time.Duration // of each way, at most; every tenth way takes up to 100 times as long

	mu   sync.Mutex
	dice *rand.Rand
	wg   sync.WaitGroup // counts the repeated requests that are still on their way
}

// dice returns a source of random numbers. With DRIPFEED_SEED it draws the same numbers
// again.
func dice(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("DRIPFEED_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("to draw the same random numbers again: DRIPFEED_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func (b *badLine) roll(share float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dice.Float64() < share
}

func (b *badLine) way() {
	b.mu.Lock()
	d := time.Duration(b.dice.Float64() * float64(b.delay))
	if b.dice.IntN(10) == 0 {
		d *= 100
	}
	b.mu.Unlock()
	time.Sleep(d)
}

// wait waits until no repeated request is on its way.
func (b *badLine) wait() { b.wg.Wait() }

func (b *badLine) Send(ctx context.Context, todo []engine.Attempt) {
	b.way()
	for i := range todo {
		if b.roll(b.lost) {
			todo[i].Err = errLost
			continue
		}
		b.Carrier.Send(ctx, todo[i:i+1])
		if b.roll(b.repeated) {
			again := []engine.Attempt{{Trip: todo[i].Trip}}
			b.wg.Go(func() {
				b.way()
				b.Carrier.Send(context.Background(), again)
			})
		}
		if b.roll(b.noReply) {
			todo[i].Err = errLost
		}
	}
	b.way()
}
