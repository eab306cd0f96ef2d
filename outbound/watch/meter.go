package watch

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// start is a moment of the package's clock, which is monotonic. The clock's zero is long before it: in a bubble of
// testing/synctest it is the year 2000.
var start = time.Now()

const before = 100 * 365 * 24 * time.Hour

func now() time.Duration { return before + time.Since(start) }

// bounds are the upper ends of the histogram's buckets, in seconds: of waits from a millisecond to an hour.
var bounds = [...]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600}

// boundTimes are the bounds as durations.
var boundTimes = func() (all [len(bounds)]time.Duration) {
	for i, s := range bounds {
		all[i] = time.Duration(s * 1e9)
	}
	return
}()

// bucketFor returns the bucket of the histogram that a wait is counted in.
func bucketFor(wait time.Duration) int {
	for i, b := range boundTimes {
		if wait <= b {
			return i
		}
	}
	return len(bounds)
}

// failure is why a call has failed, as the label of a metric.
type failure uint8

const (
	failedStore failure = iota
	failedCost
	failedClosed
	failedNil
	failedPanic
	failedOther
	failures
)

var failureNames = [failures]string{"store", "cost", "closed", "nil", "panic", "other"}

// failureWords say in words why the latest call has failed.
var failureWords = [failures]string{"the store failed", "a cost can never go", "the queue is closed", "something is nil", "the limiter panicked", ""}

// stops reports whether other calls fail for the same reason.
func (f failure) stops() bool { return f == failedStore || f == failedClosed || f == failedNil }

// failureOf returns why a call has failed.
func failureOf(err error) failure {
	var cost *outbound.CostError
	var outage *outbound.StoreError
	switch {
	case errors.As(err, &cost):
		return failedCost
	case errors.As(err, &outage) || errors.Is(err, store.ErrUnavailable):
		return failedStore
	case errors.Is(err, queue.ErrClosed):
		return failedClosed
	case errors.Is(err, outbound.ErrInvalid):
		return failedNil
	}
	return failedOther
}

// reasons are the words of an [outbound.Answer]'s Reason, with one for an unknown reason.
var reasons = [...]string{"unknown", "rate", "quota", "concurrency", "exhausted"}

// meter counts what becomes of the calls of one name. Its counters never go back.
type meter struct {
	admitted, refused, cancelled atomic.Uint64
	failed                       [failures]atomic.Uint64
	waits                        [len(bounds) + 1]atomic.Uint64 // of the admitted, by the wait
	waited                       atomic.Int64                   // ns, of the admitted in all
	units                        [len(outbound.Cost{})]floats   // of the admitted
	byAPI                        [len(reasons)]atomic.Uint64    // calls that the API has refused, by its reason
	lastFailure                  atomic.Uint32
	minute                       minute
	budgets                      budgets

	mu      sync.Mutex // protects what follows; it is taken for refusals only
	byLimit map[string]uint64
}

// floats is a sum of float64s.
type floats struct{ bits atomic.Uint64 }

func (f *floats) add(n float64) {
	for {
		old := f.bits.Load()
		if f.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+n)) {
			return
		}
	}
}

func (f *floats) load() float64 { return math.Float64frombits(f.bits.Load()) }

// countable reports whether units are to be summed up. A limiter of somebody's own may admit what is no number, and
// the sum would stay none. No bucket admits more than a trillion.
func countable(n float64) bool { return n > 0 && n <= 1e12 }

// admit counts a call that was admitted after a wait.
func (m *meter) admit(at, wait time.Duration, c *outbound.Cost) {
	m.admitted.Add(1)
	i := bucketFor(wait)
	m.waits[i].Add(1)
	m.waited.Add(int64(wait))
	for unit, n := range c {
		if countable(n) {
			m.units[unit].add(n)
		}
	}
	m.minute.admit(at, i, c)
}

// mostLimits is how many limits' refusals are told apart.
const mostLimits = 32

// refuse counts a call that was not admitted.
func (m *meter) refuse(ctx context.Context, at time.Duration, err error) {
	full := throttled(err)
	switch {
	case full != nil:
		m.refused.Add(1)
		m.minute.refuse(at)
		m.mu.Lock()
		if _, known := m.byLimit[full.Limit]; known || len(m.byLimit) < mostLimits {
			if m.byLimit == nil {
				m.byLimit = make(map[string]uint64)
			}
			m.byLimit[full.Limit]++
		}
		m.mu.Unlock()
	case errors.Is(err, outbound.ErrThrottled):
		m.refused.Add(1)
		m.minute.refuse(at)
	case ended(ctx, err):
		m.cancelled.Add(1)
	default:
		m.fail(at, failureOf(err))
	}
}

// fail counts a call that has failed.
func (m *meter) fail(at time.Duration, f failure) {
	m.failed[f].Add(1)
	m.minute.fail(at)
	m.lastFailure.Store(uint32(f))
}

// ended reports whether an error is that of a ctx that has ended. A store's own timeout is not.
func ended(ctx context.Context, err error) bool {
	if ctx == nil || ctx.Err() == nil {
		return false
	}
	return errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))
}

// throttled returns the refusal in an error; nil: it is none. It allocates only for one that is wrapped.
func throttled(err error) *outbound.ThrottledError {
	if full, ok := err.(*outbound.ThrottledError); ok {
		return full
	}
	var full *outbound.ThrottledError
	_ = errors.As(err, &full)
	return full
}

// Answered counts an answer of the API: see [outbound.Permit.Listen].
func (m *meter) Answered(a outbound.Answer) {
	kind := a.Kind
	if kind == outbound.AnswerHold && a.Reason == "concurrency" {
		kind = outbound.AnswerRefused // because of too many calls at once, which shows nothing about the pace
	}
	switch kind {
	case outbound.AnswerRefused:
		m.byAPI[max(0, slices.Index(reasons[:], a.Reason))].Add(1)
		m.minute.refuseByAPI(now())
	case outbound.AnswerQuota:
		m.budgets.hear(&a.Budget, &m.units)
	}
}

// calls returns the counts.
func (m *meter) calls() Calls {
	c := Calls{Admitted: m.admitted.Load(), Refused: m.refused.Load(), Cancelled: m.cancelled.Load(), WaitTime: time.Duration(m.waited.Load())}
	for i := range m.failed {
		if n := m.failed[i].Load(); n > 0 {
			if c.ByError == nil {
				c.ByError = make(map[string]uint64)
			}
			c.ByError[failureNames[i]] = n
			c.Failed += n
		}
	}
	for i := range m.units {
		c.Units[i] = m.units[i].load()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.byLimit) > 0 {
		c.ByLimit = make(map[string]uint64, len(m.byLimit))
		for limit, n := range m.byLimit {
			c.ByLimit[limit] = n
		}
	}
	return c
}

// refusals returns how many calls the API has refused, by its reason.
func (m *meter) refusals() (all map[string]uint64) {
	for i := range m.byAPI {
		if n := m.byAPI[i].Load(); n > 0 {
			if all == nil {
				all = make(map[string]uint64)
			}
			all[reasons[i]] += n
		}
	}
	return all
}

// usual is what a call costs on average. Before the first it is one of each unit.
func (m *meter) usual() (c outbound.Cost) {
	n := float64(m.admitted.Load())
	if n == 0 {
		return outbound.Cost{1, 1, 1, 1}
	}
	for unit := range c {
		c[unit] = m.units[unit].load() / n
	}
	return c
}

// counted is a limiter whose calls a meter counts.
type counted struct {
	limiter outbound.Limiter
	meter   *meter
	board   *Board
	name    string
}

// Acquire asks the limiter, and counts what comes of it. The permit is the limiter's own.
func (c *counted) Acquire(ctx context.Context, cost outbound.Cost) (p outbound.Permit, err error) {
	begin, returned, told := now(), false, false
	defer func() {
		switch {
		case !returned: // the limiter has panicked
			c.meter.fail(now(), failedPanic)
		case !told && err == nil: // who hears of calls has panicked: the call never goes
			p.Settle(outbound.Cost{})
			p.Done()
		}
	}()
	p, err = c.limiter.Acquire(ctx, cost)
	returned = true
	end := now()
	if err != nil {
		c.meter.refuse(ctx, end, err)
	} else {
		c.meter.admit(end, end-begin, &cost)
		p.Listen(c.meter)
	}
	c.board.tell(ctx, c.name, cost, end-begin, err)
	told = true
	return p, err
}

// Unwrap returns the limiter whose calls are counted, for outbound.As.
func (c *counted) Unwrap() outbound.Limiter { return c.limiter }

// Idle reports whether a Keyed may drop the limiter.
func (c *counted) Idle() bool {
	i, ok := c.limiter.(idler)
	return ok && i.Idle()
}

// idler is a limiter that knows whether forgetting it would lose anything.
type idler interface{ Idle() bool }
