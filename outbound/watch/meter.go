package watch

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// start is a moment of the package's clock, which is monotonic. The clock's zero is long before it,
// because in a bubble of testing/synctest the year is 2000.
var start = time.Now()

const before = 100 * 365 * 24 * time.Hour

func now() time.Duration { return before + time.Since(start) }

const (
	units       = len(outbound.Cost{})
	keptSeconds = 64 // a minute, and the second that is not over
	mostNames   = 32 // limits, and kinds of errors, whose calls are counted apart
)

// meter counts the calls of one name by their results. It counts each call once: the last minute is
// the difference between its counts and those at the beginning of a second.
type meter struct {
	mu sync.Mutex // protects what follows
	Calls
	marks   [keptSeconds]mark
	last    int64  // the latest second that the meter has counted
	failed  string // why the latest call has failed
	budgets []budget
	held    time.Duration // how long the holds have lasted that are over
	since   time.Duration // when the latest hold began
	until   time.Duration // when it ends, or 0
}

// mark is what the meter had counted at the beginning of a second.
type mark struct {
	second int64
	Calls
}

// lock locks the meter, for counting at a time.
func (m *meter) lock(at time.Duration) {
	m.mu.Lock()
	if s := int64(at / time.Second); s > m.last {
		m.marks[s%keptSeconds], m.last = mark{s, m.Calls}, s
	}
}

// countable reports whether units can be summed up. A limiter of the program may admit NaN, which
// would stay in the sum. No bucket admits more than a trillion.
func countable(n float64) bool { return n > 0 && n <= 1e12 }

// admit counts a call that was admitted after a wait.
func (m *meter) admit(at, wait time.Duration, c *outbound.Cost) {
	m.lock(at)
	defer m.mu.Unlock()
	m.Admitted++
	m.Waits.Add(wait)
	for i, n := range c {
		if countable(n) {
			m.Units[i] += n
		}
	}
}

// refuse counts a call that was not admitted, and returns its result.
func (m *meter) refuse(ctx context.Context, at time.Duration, err error) (result string) {
	var full *outbound.ThrottledError
	switch {
	case errors.As(err, &full) || errors.Is(err, outbound.ErrThrottled):
		m.lock(at)
		defer m.mu.Unlock()
		if m.Refused++; full != nil {
			add(&m.ByLimit, full.Limit)
		}
		return "refused"
	case ctx != nil && ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		m.lock(at)
		defer m.mu.Unlock()
		m.Cancelled++
		return "cancelled"
	}
	m.fail(at, failureOf(err))
	return "failed"
}

// fail counts a call that has failed.
func (m *meter) fail(at time.Duration, why string) {
	m.lock(at)
	defer m.mu.Unlock()
	m.Failed++
	add(&m.ByError, why)
	m.failed = why
}

// add counts one more of a name. New names beyond the first ones are counted as one.
func add(to *map[string]uint64, name string) {
	if *to == nil {
		*to = make(map[string]uint64)
	}
	if _, known := (*to)[name]; known || len(*to) < mostNames {
		(*to)[name]++
	}
}

// failures say in words why a call has failed, by the label of the metric.
var failures = map[string]string{
	"store": "the store failed", "cost": "a cost can never be admitted", "closed": "the queue is closed",
	"invalid": "something is invalid", "panic": "the limiter panicked",
}

// stops reports whether other calls fail for the same reason.
func stops(why string) bool { return why == "store" || why == "closed" || why == "invalid" }

// failureOf returns why a call has failed.
func failureOf(err error) string {
	var cost *outbound.CostError
	var outage *outbound.StoreError
	switch {
	case errors.As(err, &cost):
		return "cost"
	case errors.As(err, &outage) || errors.Is(err, store.ErrUnavailable):
		return "store"
	case errors.Is(err, queue.ErrClosed):
		return "closed"
	case errors.Is(err, outbound.ErrInvalid):
		return "invalid"
	}
	return "other"
}

// Answered counts an answer of the API: see [outbound.Permit.Listen].
func (m *meter) Answered(a outbound.Answer) {
	at := now()
	m.lock(at)
	defer m.mu.Unlock()
	switch {
	case a.Kind == outbound.AnswerQuota:
		m.hearLocked(&a.Budget, at)
	case a.Kind == outbound.AnswerRefused, a.Kind == outbound.AnswerHold && a.Reason == "concurrency": // which shows nothing about the pace
		if a.Reason == "" || why[a.Reason] == "" {
			a.Reason = "unknown"
		}
		m.ByAPI++
		add(&m.ByReason, a.Reason)
	}
}

// change counts for how long the bucket is held.
func (m *meter) change(e *outbound.Event) {
	at := now()
	m.mu.Lock()
	defer m.mu.Unlock()
	ends := at + min(e.Hold, 1<<62-at)
	switch e.Kind {
	case outbound.EventHeld:
		m.held, m.since, m.until = m.heldLocked(at), at, ends
	case outbound.EventExtended:
		m.until = ends
	case outbound.EventReleased, outbound.EventResumed:
		m.held, m.since, m.until = m.heldLocked(at), 0, 0
	}
}

// heldLocked returns for how long the bucket was held in all.
func (m *meter) heldLocked(at time.Duration) time.Duration {
	return m.held + max(0, min(at, m.until)-m.since)
}

// read fills in what the meter has counted, and with minute the last minute.
func (m *meter) read(l *Limiter, at time.Duration, minute bool) (held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.Calls = m.Calls
	l.Calls.ByLimit, l.Calls.ByError, l.Calls.ByReason = maps.Clone(m.ByLimit), maps.Clone(m.ByError), maps.Clone(m.ByReason)
	l.Budgets, l.HeldTime, l.failed = m.budgetsLocked(at), m.heldLocked(at), m.failed
	if minute {
		l.Minute = m.minuteLocked(at)
	}
	return at < m.until
}

// usual is what a call costs on average. Before the first it is one of each unit.
func (m *meter) usual() (c outbound.Cost) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Admitted == 0 {
		return outbound.Cost{1, 1, 1, 1}
	}
	for i := range c {
		c[i] = m.Units[i] / float64(m.Admitted)
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

// Acquire asks the limiter, and counts the result. The permit is the limiter's own.
func (c *counted) Acquire(ctx context.Context, cost outbound.Cost) (p outbound.Permit, err error) {
	begin, returned, reported := now(), false, false
	defer func() {
		switch {
		case !returned: // the limiter has panicked
			c.meter.fail(now(), "panic")
		case !reported && err == nil: // OnCall has panicked, and the call never leaves
			p.Settle(outbound.Cost{})
			p.Done()
		}
	}()
	p, err = c.limiter.Acquire(ctx, cost)
	returned = true
	end, result := now(), "admitted"
	if err != nil {
		result = c.meter.refuse(ctx, end, err)
	} else {
		c.meter.admit(end, end-begin, &cost)
		p.Listen(c.meter)
	}
	if f := c.board.OnCall; f != nil {
		f(ctx, Call{c.name, cost, end - begin, result, err})
	}
	reported = true
	return p, err
}

// Unwrap returns the limiter whose calls are counted, for outbound.As.
func (c *counted) Unwrap() outbound.Limiter { return c.limiter }

// Idle reports whether a Keyed may drop the limiter.
func (c *counted) Idle() bool {
	i, ok := c.limiter.(interface{ Idle() bool })
	return ok && i.Idle()
}
