package rowstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// table is a database of rows that can be locked.
type table struct {
	mu     sync.Mutex
	rows   map[string]Row
	locks  map[string]chan struct{} // by key; full while the row is locked
	ahead  time.Duration            // of its clock
	asked  int                      // swaps and locks
	trips  int                      // as package pgstore makes them: one for a swap of any rows, three for a lock
	writes int
	keep   time.Duration // of the last write
}

func newTable() *table {
	return &table{rows: make(map[string]Row), locks: make(map[string]chan struct{})}
}

// NewTable makes a table for tests outside of the package.
func NewTable() Rows { return newTable() }

// set changes the table.
func (t *table) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// lockOf returns the lock of a row.
func (t *table) lockOf(name []byte) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := string(name)
	if t.locks[key] == nil {
		t.locks[key] = make(chan struct{}, 1)
	}
	return t.locks[key]
}

// hold locks the row of a key by hand.
func (t *table) hold(key string) (free func()) {
	l := t.lockOf((&Config{}).name(key))
	l <- struct{}{}
	return func() { <-l }
}

func (t *table) clock() time.Duration { return time.Duration(time.Now().UnixNano()) + t.ahead }

// write writes a row. mu is held.
func (t *table) write(s *Swap) {
	t.rows[string(s.Key)], s.Done = Row{Token: s.Token, Bytes: s.New}, true
	t.writes++
	t.keep = s.Keep
}

func (t *table) Swap(_ context.Context, swaps []Swap) error {
	t.swap(swaps, 0, false)
	return nil
}

// swap is Swap for a process whose clock is ahead of the table's. own says that it reads no other.
func (t *table) swap(swaps []Swap, ahead time.Duration, own bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trips++
	for i := range swaps {
		s := &swaps[i]
		t.asked++
		s.Clock, s.Own = t.clock()+ahead, own
		if s.New != nil && t.rows[string(s.Key)].Token == s.Old && s.InTime() {
			if s.Busy = len(t.locks[string(s.Key)]) > 0; !s.Busy {
				t.write(s)
			}
		}
		s.Row = t.rows[string(s.Key)]
	}
}

func (t *table) Lock(ctx context.Context, s *Swap, compute func()) error {
	return t.lock(ctx, s, compute, func() {})
}

// lock is Lock by a process that is one way from the table.
func (t *table) lock(ctx context.Context, s *Swap, compute, way func()) error {
	l := t.lockOf(s.Key)
	ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
	defer cancel()
	select {
	case l <- struct{}{}:
		defer func() { <-l }()
	case <-ctx.Done():
		s.Busy = true
		return nil
	}
	t.set(func() {
		s.Row, s.Clock = t.rows[string(s.Key)], t.clock()
		t.asked++
		t.trips += 3
	})
	if s.Row.Token == 0 {
		return nil
	}
	way()
	compute()
	way()
	if s.New != nil {
		t.set(func() { t.write(s) })
	}
	return nil
}

// store returns a store of one process on the table.
func (t *table) store() *Store { return New(t, Config{}) }

// level returns the level of a key, as another process sees it.
func (t *table) level(test *testing.T, key string) float64 {
	test.Helper()
	r, err := t.store().Update(bg, key, &store.Op{Limits: ages})
	require.NoError(test, err)
	return r.State.Level[0]
}

// line is one process's line to a table. It may lose requests and replies, repeat requests later,
// and delay both.
type line struct {
	*table
	lost, noReply float64       // shares of the requests and of the replies that are lost
	repeated      float64       // share of the requests that arrive a second time
	delay         time.Duration // of each way; with dice up to so much, and every tenth 100 times as long
	dice          *rand.Rand

	mu     sync.Mutex
	around around
	wg     sync.WaitGroup // counts the repeated requests that are on their way
}

// around is called for each request with what carries it out. The swaps of a Lock are nil.
type around func(ctx context.Context, swaps []Swap, carry func() error) error

// answers has requests answered by f, or by the table if f is nil.
func (l *line) answers(f around) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.around = f
	return l
}

// answersOnce has the next request answered by f.
func (l *line) answersOnce(f around) {
	l.answers(func(ctx context.Context, swaps []Swap, carry func() error) error {
		l.answers(nil)
		return f(ctx, swaps, carry)
	})
}

var errLost = errors.Join(store.ErrUnavailable, errors.New("lost on the way"))

// roll reports whether a request or a reply is one of a share.
func (l *line) roll(share float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return share > 0 && l.dice.Float64() < share
}

func (l *line) way() {
	d := l.delay
	if l.dice != nil {
		l.mu.Lock()
		if d = time.Duration(l.dice.Float64() * float64(d)); l.dice.IntN(10) == 0 {
			d *= 100
		}
		l.mu.Unlock()
	}
	time.Sleep(d)
}

// request carries a request out over the line.
func (l *line) request(ctx context.Context, swaps []Swap, carry func() error) error {
	l.way()
	if l.roll(l.lost) {
		return errLost
	}
	l.mu.Lock()
	answer := l.around
	l.mu.Unlock()
	if answer != nil {
		return answer(ctx, swaps, carry)
	}
	err := carry()
	l.way()
	if l.roll(l.noReply) {
		return errLost
	}
	return err
}

func (l *line) Swap(ctx context.Context, swaps []Swap) error {
	return l.request(ctx, swaps, func() error {
		again := slices.Clone(swaps)
		_ = l.table.Swap(ctx, swaps) // never fails
		for i := range swaps {
			if swaps[i].Busy { // then it is not carried out later
				again[i].New = nil
			}
		}
		if l.roll(l.repeated) {
			l.wg.Go(func() {
				l.way()
				_ = l.table.Swap(ctx, again)
			})
		}
		return nil
	})
}

func (l *line) Lock(ctx context.Context, s *Swap, compute func()) error {
	return l.request(ctx, nil, func() error { return l.lock(ctx, s, compute, l.way) })
}

// unlocked are rows that cannot be locked.
type unlocked struct{ Rows }

// forms are the two forms of rows: those that can be locked, and those that cannot.
var forms = map[string]func(Rows) Rows{
	"locks":    func(r Rows) Rows { return r },
	"no locks": func(r Rows) Rows { return unlocked{r} },
}

// dice returns a source of random numbers. With DRIPFEED_SEED it draws the same numbers again.
func dice(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("DRIPFEED_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("to draw the same random numbers again: DRIPFEED_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// bubble runs a test in virtual time, and then gives the engine's idle goroutines time to end.
func bubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		f(t)
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

var bg = context.Background()

// ages is a limit so slow that nothing leaks from it during a test.
var ages = []store.Limit{{Name: "calls", Capacity: 1e4, Rate: 1e-5}}

// calls asks for n calls of one unit, now.
func calls(n int) *store.Op {
	op := &store.Op{Limits: ages, Action: store.Book}
	for range n {
		op.Costs = append(op.Costs, store.Units{1})
	}
	return op
}

// one asks for one call of a key.
func one(s *Store, key string) error {
	_, err := s.Update(bg, key, calls(1))
	return err
}

// ask makes a step of the key "key" by a limit, which must succeed.
func ask(t *testing.T, s *Store, limit store.Limit, op store.Op) store.Reply {
	t.Helper()
	op.Limits = []store.Limit{limit}
	op.Base = store.Hash(op.Limits)
	r, err := s.Update(bg, "key", &op)
	require.NoError(t, err)
	return r
}

// events are the events that a store has reported.
type events struct {
	mu  sync.Mutex
	all []store.StoreEvent
}

func (e *events) observe(ev store.StoreEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

// kinds returns the kinds of the events so far, once all are reported. It needs a bubble.
func (e *events) kinds() (kinds []store.StoreEventKind) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		kinds = append(kinds, ev.Kind)
	}
	return kinds
}
