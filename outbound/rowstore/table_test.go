package rowstore_test

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

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// table is a database of rows that can be locked. It has a clock of its own.
type table struct {
	mapRows
	ahead  time.Duration            // of the clock
	locks  map[string]chan struct{} // by key; full while the row is locked
	writes int
	asked  int // swaps and locks
	trips  int // as package pgstore makes them: one for a swap of any rows, three for a lock
}

func newTable() *table {
	return &table{mapRows: mapRows{rows: make(map[string]rowstore.Row)}, locks: make(map[string]chan struct{})}
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

func (t *table) clock() time.Duration { return time.Duration(time.Now().UnixNano()) + t.ahead }

// write writes a row. mu is held.
func (t *table) write(s *rowstore.Swap) {
	t.rows[string(s.Key)], s.Done = rowstore.Row{Token: s.Token, Bytes: s.New}, true
	t.writes++
}

func (t *table) Swap(_ context.Context, swaps []rowstore.Swap) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trips++
	for i := range swaps {
		s := &swaps[i]
		t.asked++
		s.Clock = t.clock()
		if s.New != nil && t.rows[string(s.Key)].Token == s.Old && s.InTime() {
			if s.Busy = len(t.locks[string(s.Key)]) > 0; !s.Busy {
				t.write(s)
			}
		}
		s.Row = t.rows[string(s.Key)]
	}
	return nil
}

func (t *table) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	return t.lock(ctx, s, compute, func() {})
}

// lock is Lock by a process that is one way from the table.
func (t *table) lock(ctx context.Context, s *rowstore.Swap, compute, way func()) error {
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
	t.mu.Lock()
	s.Row, s.Clock = t.rows[string(s.Key)], t.clock()
	t.asked++
	t.trips += 3
	t.mu.Unlock()
	if s.Row.Token == 0 {
		return nil
	}
	way()
	compute()
	way()
	if s.New != nil {
		t.mu.Lock()
		t.write(s)
		t.mu.Unlock()
	}
	return nil
}

// set changes the table.
func (t *table) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// store returns a store of one process on the table.
func (t *table) store() *rowstore.Store { return rowstore.New(t, rowstore.Config{}) }

// badRows are the rows of a table behind a bad line: the line loses requests and replies,
// repeats requests later, and delays both.
type badRows struct {
	*table
	lost     float64       // share of the requests that are lost
	noReply  float64       // share of the replies that are lost
	repeated float64       // share of the requests that arrive a second time
	delay    time.Duration // of each way, at most; every tenth way takes up to 100 times as long
	even     bool          // each way takes just the delay
	dice     *rand.Rand
	diceMu   sync.Mutex
	wg       sync.WaitGroup // counts the repeated requests that are on their way
}

var errLost = errors.Join(store.ErrUnavailable, errors.New("lost on the way"))

func (b *badRows) roll(share *float64) bool {
	b.diceMu.Lock()
	defer b.diceMu.Unlock()
	return *share > 0 && b.dice.Float64() < *share
}

// lose sets the share of the replies that are lost.
func (b *badRows) lose(noReply float64) {
	b.diceMu.Lock()
	defer b.diceMu.Unlock()
	b.noReply = noReply
}

func (b *badRows) way() {
	d := b.delay
	if !b.even {
		b.diceMu.Lock()
		d = time.Duration(b.dice.Float64() * float64(d))
		if b.dice.IntN(10) == 0 {
			d *= 100
		}
		b.diceMu.Unlock()
	}
	time.Sleep(d)
}

func (b *badRows) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	again := append([]rowstore.Swap(nil), swaps...)
	b.way()
	if b.roll(&b.lost) {
		return errLost
	}
	_ = b.table.Swap(ctx, swaps) // never fails
	for i := range swaps {
		if swaps[i].Busy { // then it is not carried out later
			again[i].New = nil
		}
	}
	if b.roll(&b.repeated) {
		b.wg.Go(func() {
			b.way()
			_ = b.table.Swap(ctx, again)
		})
	}
	b.way()
	if b.roll(&b.noReply) {
		return errLost
	}
	return nil
}

func (b *badRows) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	b.way()
	if b.roll(&b.lost) {
		return errLost
	}
	err := b.lock(ctx, s, compute, b.way)
	if err == nil {
		b.way()
	}
	if b.roll(&b.noReply) {
		return errLost
	}
	return err
}

// unlocked are rows that cannot be locked.
type unlocked struct{ rowstore.Rows }

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
func one(s *rowstore.Store, key string) error {
	_, err := s.Update(context.Background(), key, calls(1))
	return err
}

// level returns the level of a key, as another process sees it.
func (t *table) level(test *testing.T, key string) float64 {
	test.Helper()
	r, err := t.store().Update(context.Background(), key, &store.Op{Limits: ages})
	if err != nil {
		test.Fatal(err)
	}
	return r.State.Level[0]
}

// events are the events that stores have reported.
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

// bucket is a user of a store, for a key with one leaky limit.
type bucket struct {
	store  store.Store
	limits []store.Limit
}

func shared(s store.Store, capacity, rate float64) *bucket {
	return &bucket{s, []store.Limit{{Name: "calls", Capacity: capacity, Rate: rate}}}
}

// do makes a step.
func (b *bucket) do(t *testing.T, op store.Op) store.Reply {
	t.Helper()
	op.Limits, op.Base = b.limits, store.Hash(b.limits)
	r, err := b.store.Update(context.Background(), "key", &op)
	if err != nil {
		t.Error(err)
	}
	return r
}

// acquire reports whether a call may leave now. A reply that comes too late counts as none.
func (b *bucket) acquire(t *testing.T) bool {
	t.Helper()
	r := b.do(t, store.Op{Action: store.Book, Costs: []store.Units{{1}}})
	return len(r.Charges) == 1 && time.Since(r.When) <= store.BookingGrace
}

// hanging are rows that do not answer until the test lets them.
type hanging struct {
	rowstore.Locker
	mu    sync.Mutex
	until chan struct{} // nil: they answer
	calls int           // that are under way now
	most  int
}

func (h *hanging) hang() (free func()) {
	until := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = until
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.until = nil
		close(until)
	}
}

func (h *hanging) wait() {
	h.mu.Lock()
	until := h.until
	h.calls++
	h.most = max(h.most, h.calls)
	h.mu.Unlock()
	if until != nil {
		<-until
	}
	h.mu.Lock()
	h.calls--
	h.mu.Unlock()
}

func (h *hanging) Swap(ctx context.Context, swaps []rowstore.Swap) error {
	h.wait()
	return h.Locker.Swap(ctx, swaps)
}

func (h *hanging) Lock(ctx context.Context, s *rowstore.Swap, compute func()) error {
	h.wait()
	return h.Locker.Lock(ctx, s, compute)
}
