package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// twins are the buckets of one key twice: on the store under test, for several
// workers, and on the Go arithmetic, which gets the time at which the store says that
// it has answered. The test uses both alike, with permits of each side's own, and
// compares each answer of the arithmetic with the store's.
type twins struct {
	key         string
	stores      []leak.Store
	left, right []*outbound.Bucket // one for each store
	model       model
	latest      func() time.Duration // the latest time that the store's clock has shown

	logs     func() (*leak.Logs, error) // those of the key, as the store keeps them; nil: only the store knows
	kept     *leak.Logs                 // the logs after the answer under comparison
	answers  []told                     // the store's answers that the arithmetic has not compared yet
	got      leak.Reply                 // the answer under comparison
	asked    int                        // number of the store's answers
	compared int                        // number of compared answers
	until    time.Duration              // when the store may forget the key
	epochs   [2]int64                   // at the beginning of this life, on each side
	lives    int                        // how often the store has forgotten the key
	lead     float64                    // the lead before
	blurred  int                        // answers that differ, where rounding decides
	trusted  int                        // answers of buckets that refusals no longer slow down
	before   func() string              // describes the operation, and the state before it
	err      error                      // the first difference
}

// told is an answer of the store, with the periods that it was asked by, and the logs of the
// key after it.
type told struct {
	reply   leak.Reply
	periods []leak.Period
	logs    *leak.Logs
}

// errRow is a difference in the row of refusals. Rounding does not explain it.
var errRow = errors.New("row of refusals")

// storeFunc is a function as a store.
type storeFunc func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error)

func (f storeFunc) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	return f(ctx, key, op)
}

// describe returns the parts of an operation that explain a difference.
func describe(op *leak.Op) string {
	s := op.Action.String()
	for _, r := range op.Reports {
		s += fmt.Sprintf(" %d used %v wait %v epoch %d", r.Kind, r.Used, r.Wait, r.Epoch)
		if r.Charge != nil {
			s += fmt.Sprintf(" of %+v", *r.Charge)
		}
	}
	for _, c := range op.Back {
		s += fmt.Sprintf(" back %+v", c)
	}
	if op.Move != nil {
		s += fmt.Sprintf(" move %+v", *op.Move)
	}
	return s
}

func newTwins(key string, stores []leak.Store, latest func() time.Duration, limits ...outbound.Limit) *twins {
	w := &twins{key: key, stores: stores, latest: latest}
	_, w.model.exact = stores[0].(*leak.Memory)
	for _, s := range stores {
		w.left = append(w.left, outbound.Must(outbound.NewSharedBucket(w.store(s), key, limits...)))
		w.right = append(w.right, outbound.Must(outbound.NewSharedBucket(storeFunc(w.compute), key, limits...)))
	}
	return w
}

// store wraps the store under test.
func (w *twins) store(s leak.Store) leak.Store {
	return storeFunc(func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
		if f, ok := s.(interface{ Forget(string) }); ok {
			f.Forget(key)
		}
		r, err := s.Update(ctx, key, op)
		if err == nil {
			r.Charges = slices.Clone(r.Charges)
			a := told{reply: r, periods: op.Periods}
			if w.logs != nil {
				if a.logs, err = w.logs(); err != nil {
					w.differ("logs: %w", err)
				}
			}
			w.answers, w.asked = append(w.answers, a), w.asked+1
		}
		r.When = time.Time{} // so that no answer is late, however busy the machine is
		return r, err
	})
}

// compute answers by the Go arithmetic, and compares the answers.
func (w *twins) compute(_ context.Context, _ string, op *leak.Op) (leak.Reply, error) {
	w.compared++
	if len(w.answers) == 0 {
		w.differ("the store was asked %d times, the arithmetic %d times", w.asked, w.compared)
		return leak.Reply{}, w.err
	}
	a := w.answers[0]
	w.answers = w.answers[1:]
	w.got, w.kept = a.reply, a.logs
	asked := *op
	asked.Periods = a.periods // both sides estimate the time of day, one after the other
	op = &asked
	got, m := &w.got, &w.model
	if got.Untimely {
		return w.untimely(op), nil
	}
	if got.Stale {
		return w.stale(op), nil
	}
	at := got.State.At
	if m.exact {
		m.unix = time.Duration(time.Now().UnixNano()) - at
		if got.Unix != at+m.unix {
			w.differ("the time of day is %v, want %v", got.Unix, at+m.unix)
		}
	}
	fresh := got.State.Epoch - w.epochs[0] + w.epochs[1] // as the arithmetic counts
	if m.State.Speed == 0 || max(fresh-m.State.Epoch, m.State.Epoch-fresh) > 8 {
		if w.latest() < w.until {
			w.differ("forgotten %v before it was empty: %+v", w.until-w.latest(), m.Stored)
		}
		w.lives++
		*m = model{exact: m.exact, unix: m.unix}
		w.before = func() string { return describe(op) }
		want := m.apply(op, at)
		grown := want.State.Epoch - int64(at)
		w.epochs = [2]int64{got.State.Epoch - grown, int64(at)}
		return w.finish(op, &want, got), nil
	}
	w.lead = m.Lead
	was := *m
	was.Stored, was.others = was.Clone(), slices.Clip(was.others)
	try := func(s leak.Stored, bent int) (*leak.Op, leak.Reply) {
		own := clone(op)
		if m.exact {
			bent = 0
		} else {
			snap(own, s.Clone(), at, was.unix, bent)
		}
		*m = was
		m.Stored = s.Clone()
		widen(m.State.Logs, charges(op), charges(own))
		return own, m.apply(own, at)
	}
	own, want := try(was.Stored, 0)
	if w.err == nil && w.compare(own, &want, got) != nil {
		own, want = w.search(op, try, &was)
	}
	w.consider(op, try, &was, at)
	before := clone(op)
	w.before = func() string {
		return fmt.Sprintf("%s\nfrom       %+v\nlogs       %+v", describe(before), was, was.State.Logs)
	}
	for i, c := range charges(op) {
		place := c.Place
		*c = *charges(own)[i]
		c.Place = place
	}
	return w.finish(op, &want, got), nil
}

// stale is compute for an answer that says that other limits are in force.
func (w *twins) stale(op *leak.Op) leak.Reply {
	got, m := &w.got, &w.model
	if m.State.Speed != 0 && op.Stamp == m.Stamp { // the store has forgotten the key
		if w.latest() < w.until {
			w.differ("forgotten %v before it was empty: %+v", w.until-w.latest(), m.Stored)
		}
		*m = model{exact: m.exact}
	}
	want := leak.Reply{Limit: -1, Stale: true, Stamp: m.Stamp, Version: m.Version}
	if m.Stamp != 0 {
		want.Limits = m.Limits
	}
	if got.Stamp != want.Stamp || got.Version != want.Version || !slices.Equal(got.Limits, want.Limits) {
		w.differ("stale: stamp %d, version %d, limits %v; want %d, %d, %v", got.Stamp, got.Version, got.Limits, want.Stamp, want.Version, want.Limits)
	}
	return want
}

// counted returns the limits by which an operation's answer counts.
func counted(op *leak.Op) []leak.Limit {
	if op.Action == leak.Replace {
		return op.Replacement
	}
	return op.Limits
}

// search looks for a way in which the store may have reached its answer, where
// rounding decides: from another state, or with another charge taken for the latest.
func (w *twins) search(op *leak.Op, try func(leak.Stored, int) (*leak.Op, leak.Reply), was *model) (*leak.Op, leak.Reply) {
	states := append([]leak.Stored{was.Stored}, was.others...)
	for bent := range 1 << min(8, len(charges(op))) {
		for _, s := range states {
			if own, again := try(s, bent); w.compare(own, &again, &w.got) == nil {
				if bent > 0 {
					w.blurred++
				}
				return own, again
			}
		}
	}
	return try(was.Stored, 0)
}

// consider adds the states that the store may have now because it was in one of the others. Those
// that were ahead of the clock, which has gone back, can give the same answer and yet be
// kept as of another time: a hold, for one, forgets how long the last one had to go.
func (w *twins) consider(op *leak.Op, try func(leak.Stored, int) (*leak.Op, leak.Reply), was *model, at time.Duration) {
	m := &w.model
	back := was.State.At > at
	for _, s := range was.others {
		back = back || s.State.At > at
	}
	if !back {
		return
	}
	is := *m
	var also []leak.Stored
	for _, s := range was.others {
		if _, again := try(s, 0); m.State.At != is.State.At && w.compare(op, &again, &w.got) == nil {
			also = append(also, m.Stored)
		}
	}
	*m = is
	m.others = append(also, is.others...)
}

func (w *twins) finish(op *leak.Op, want, got *leak.Reply) leak.Reply {
	if want.State.Row.Trust > 0 {
		w.trusted++
	}
	if err := w.compare(op, want, got); err != nil && w.err == nil && (errors.Is(err, errRow) || !blurs(op, want)) && !w.byANanosecond(op, want, got) && !errors.Is(err, errMerged) {
		w.differ("%w\nasked      %s\nstore      %+v\narithmetic %+v", err, w.before(), *got, *want)
	} else if err != nil {
		w.blurred++
		epoch := want.State.Epoch
		*want = *got
		logs := w.model.State.Logs
		want.Charges = slices.Clone(got.Charges)
		for i := range want.Charges {
			want.Charges[i].Epoch = epoch
		}
		want.State.Epoch = epoch
		w.model.State = want.State
		w.model.State.Logs = logs
		w.model.State.Keep(w.model.ahead)
		w.model.Lead = max(w.lead, got.Claim)
	}
	w.adopt()
	w.until = max(w.until, want.State.At+min(want.Expire, math.MaxInt64/2))
	// Differences by rounding must not add up: each step begins with the store's
	// state. The store has not kept a state that it has only looked at.
	m := &w.model
	is, kept := got.State, want.State
	is.Logs, kept.Logs = m.State.Logs, m.State.Logs
	is.Epoch = want.State.Epoch
	is.Keep(m.ahead)
	kept.Keep(m.ahead)
	if m.State == kept {
		m.State = is
	} else if k := len(m.others); k > 0 {
		is.Logs = m.others[k-1].State.Logs
		m.others[k-1].State = is
	}
	for i := range want.Charges[:min(len(want.Charges), len(got.Charges))] {
		c, g := &want.Charges[i], &got.Charges[i]
		widenTo(m.State.Logs, c.Place, g.Place)
		c.Place, c.Before, c.Born, c.Y, c.Up, c.Free = g.Place, g.Before, g.Born, g.Y, g.Up, g.Free
	}
	return *want
}

func (w *twins) differ(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// compare returns a difference between both answers.
func (w *twins) compare(op *leak.Op, want, got *leak.Reply) error {
	if len(got.Charges) != len(want.Charges) || got.Refused != want.Refused || want.Stale {
		return fmt.Errorf("granted %d, refused %v; want %d, %v, stale %v", len(got.Charges), got.Refused, len(want.Charges), want.Refused, want.Stale)
	}
	limits := counted(op)
	// Each place of a batch is rounded anew. Doubles have 16 digits, and the script
	// cuts them off short of the longest duration. A slowed clock magnifies a
	// nanosecond.
	far := 2 + float64(len(want.Charges))
	if v := got.State.Speed; v < 1 {
		far += far / v
	}
	near := func(a, b time.Duration) bool {
		return math.Abs(float64(a-b)) <= far+4e-16*math.Abs(float64(b)) || min(a, b) > 9e18
	}
	if !near(got.Wait, want.Wait) || got.Limit != want.Limit && !w.tied(op, want, got.Limit) {
		return fmt.Errorf("refused by %d for %v, want by %d for %v", got.Limit, got.Wait, want.Limit, want.Wait)
	}
	if got.Garbage != want.Garbage {
		return fmt.Errorf("garbage %v, want %v", got.Garbage, want.Garbage)
	}
	if got.Version != want.Version || got.Stamp != want.Stamp || got.Full != want.Full || got.Claim != want.Claim || got.Differ {
		return fmt.Errorf("version %d, stamp %d, full %v, claim %v, differ %v; want %d, %d, %v, %v, false",
			got.Version, got.Stamp, got.Full, got.Claim, got.Differ, want.Version, want.Stamp, want.Full, want.Claim)
	}
	g, s := &got.State, &want.State
	if a, b := g.Row, s.Row; a.Calls != b.Calls || a.Refused != b.Refused || a.Trust != b.Trust || !near(a.Until, b.Until) ||
		math.Abs(a.Top-b.Top) > 1e-9 || math.Abs(a.Per-b.Per) > 1e-9*b.Per || math.Abs(a.Fast-b.Fast) > 1e-9 {
		return fmt.Errorf("%w %+v, want %+v", errRow, a, b)
	}
	if !near(g.Dial(), s.Dial()) || !near(g.Last, s.Last) || !near(g.Rem, s.Rem) || math.Abs(g.Speed-s.Speed) > 1e-9 || g.Fails != s.Fails || s.Rem > 0 && g.Why != s.Why ||
		g.Epoch-w.epochs[0] != s.Epoch-w.epochs[1] {
		return fmt.Errorf("dial %v, last %v, rem %v, speed %v, fails %d, epoch %d; want %v, %v, %v, %v, %d, %d", g.Dial(), g.Last, g.Rem, g.Speed, g.Fails, g.Epoch-w.epochs[0],
			s.Dial(), s.Last, s.Rem, s.Speed, s.Fails, s.Epoch-w.epochs[1])
	}
	if w.model.changed && w.kept != nil {
		if err := compareLogs(w.model.logs, w.kept, w.model.State.Dial(), far+4); err != nil {
			return err
		}
	}
	for i := range limits {
		if limits[i].Kind != leak.Leaky {
			if err := w.compareKind(&limits[i], i, want, got, far); err != nil {
				return err
			}
			continue
		}
		// The worth of a nanosecond. Each place of a batch is rounded anew.
		slack := 1e-6 + 2e-9*limits[i].Rate*float64(1+len(want.Charges))
		a, b := g.Level[i], s.Level[i]
		if op.Action == leak.Replace { // what has come back counts from the dial's zero, at another rate
			slack += 1e-15 * 1e5 * math.Abs(s.Dial().Seconds())
			slack += 2e-9 * 1e5 // the level has leaked at another rate
		}
		if op.Action == leak.Replace && (math.Abs(a.Ret-b.Ret) > slack || math.Abs(a.Top-b.Top) > slack) {
			// A limit at its brim may seem a little below it, and be raised.
			if brim := limits[i].Capacity + limits[i].Rate*max(0, s.Last).Seconds(); math.Abs(a.Level-brim) < slack {
				a.Ret, a.Top = b.Ret, b.Top
			}
		}
		if !(math.Abs(a.Level-b.Level) <= slack) || !(math.Abs(a.Ret-b.Ret) <= slack+1e-12*math.Abs(b.Ret)) || !(math.Abs(a.Top-b.Top) <= slack) {
			return fmt.Errorf("%v: %+v, want %+v", limits[i], a, b)
		}
		for k := range want.Charges {
			a, b := &got.Charges[k], &want.Charges[k]
			if !(math.Abs(a.N[i]-b.N[i]) <= 1e-6) || !(math.Abs(a.Y[i]-b.Y[i]) <= slack+1e-12*math.Abs(b.Y[i])) || !(math.Abs(a.Up[i]-b.Up[i]) <= slack) {
				return fmt.Errorf("charge %d, %v: %v of %v, raised by %v, want %v of %v, %v", k, limits[i], a.N[i], a.Y[i], a.Up[i], b.N[i], b.Y[i], b.Up[i])
			}
		}
	}
	for k := range want.Charges {
		a, b := &got.Charges[k], &want.Charges[k]
		if !near(a.Place, b.Place) || !near(a.Before, b.Before) || !near(a.Free, b.Free) || a.Epoch-w.epochs[0] != b.Epoch-w.epochs[1] || a.Settled != b.Settled || a.Lost != b.Lost {
			return fmt.Errorf("charge %d: %+v, want %+v", k, *a, *b)
		}
	}
	return nil
}

// both does the same on both sides, with a worker's bucket, and returns the first
// difference so far.
func (w *twins) both(worker int, do func(side int, b *outbound.Bucket) error) error {
	left := do(0, w.left[worker])
	if left != nil && !expected(left) {
		return left
	}
	right := do(1, w.right[worker])
	if w.err == nil && (left == nil) != (right == nil) {
		w.differ("error %v, want %v", left, right)
	}
	if w.asked != w.compared {
		w.differ("the store was asked %d times, the arithmetic %d times", w.asked, w.compared)
	}
	return w.err
}

func expected(err error) bool {
	return errors.Is(err, outbound.ErrThrottled) || errors.Is(err, outbound.ErrTooLarge) || errors.Is(err, outbound.ErrInvalidCost)
}
