package xrate

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"golang.org/x/time/rate"
)

const maxWait = time.Duration(math.MaxInt64)

// Limiter is a [rate.Limiter] as an [outbound.Limiter]. All its state is in Rate. It is safe for
// concurrent use. Set its fields before first use; the rate and the burst of Rate may change later.
type Limiter struct {
	// Rate admits the calls. If it is nil, Acquire returns [outbound.ErrInvalid].
	Rate *rate.Limiter
	// Unit is the index of the number in a cost that Rate counts, 0 to 3.
	Unit int
	// Key names the limiter in errors. It may be empty.
	Key string
}

// Acquire admits a call if Rate has the tokens for it now: the number of its
// cost that Unit names, rounded up. It locks Rate once more than
// [rate.Limiter.AllowN] does, and allocates only errors. The permit has nothing to
// do. If there is an error, nothing is charged; it is
//
//   - ctx's own, if ctx is done;
//   - an [*outbound.ThrottledError], if the tokens are not there yet, with the
//     time until they are, rounded up to the nanosecond and at most 292 years;
//   - an [*outbound.CostError], [outbound.ErrTooLarge], if the cost is above the
//     burst, unless the rate is [rate.Inf], which ignores the burst;
//   - an [*outbound.CostError], [outbound.ErrInvalid], if a number of the
//     cost is NaN, infinite or negative, or the one that Rate counts is 0 and not
//     [outbound.Free];
//   - an [*outbound.LimitError], if Unit is not 0 to 3, if the rate is 0 or below and too few
//     tokens are left, or if the rate is or was NaN or math.Inf(1), which would admit every call;
//   - [outbound.ErrInvalid], if Rate is nil.
func (l *Limiter) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	if l == nil {
		return outbound.Permit{}, fmt.Errorf("%w: nil xrate.Limiter", outbound.ErrInvalid)
	}
	if l.Rate == nil {
		return outbound.Permit{}, fmt.Errorf("%w: nil rate.Limiter of %.80q", outbound.ErrInvalid, l.Key)
	}
	if err := ctx.Err(); err != nil {
		return outbound.Permit{}, err
	}
	if err := l.check(&c); err != nil {
		return outbound.Permit{}, err
	}
	c[l.Unit] = math.Ceil(c[l.Unit])
	n := math.MaxInt
	if c[l.Unit] < math.MaxInt {
		n = int(c[l.Unit])
	}
	// A reservation that is cancelled would charge a refused call: x/time keeps what was reserved
	// after it.
	t := time.Now()
	if l.Rate.AllowN(t, n) {
		return outbound.Permit{}, nil
	}
	return outbound.Permit{}, l.refusal(t, n, c)
}

// Idle reports whether forgetting Rate would lose nothing but changes of its
// rate and burst: all tokens are there. It is what an [outbound.Keyed] asks
// before it drops a limiter.
func (l *Limiter) Idle() bool {
	if l == nil || l.Rate == nil {
		return true
	}
	// Tokens that are NaN are no loss either.
	return !(l.Rate.Tokens() < float64(l.Rate.Burst()))
}

// check returns what is wrong with the limiter or the cost.
func (l *Limiter) check(c *outbound.Cost) error {
	if l.Unit < 0 || l.Unit >= len(outbound.Cost{}) {
		return l.flaw("unit %d is not one of 0 to %d", l.Unit, len(outbound.Cost{})-1)
	}
	for _, n := range c {
		if n != outbound.Free && !(n >= 0 && n <= math.MaxFloat64) {
			return &outbound.CostError{Key: l.Key, Cost: *c, Err: outbound.ErrInvalid}
		}
	}
	if c[l.Unit] == 0 {
		return &outbound.CostError{Key: l.Key, Cost: *c, Err: outbound.ErrInvalid}
	}
	// At the zero time no token has accrued: 0 seconds at a finite rate. If this is NaN, every
	// comparison of x/time is false.
	if math.IsNaN(l.Rate.TokensAt(time.Time{})) {
		if r := float64(l.Rate.Limit()); math.IsNaN(r) || math.IsInf(r, 0) {
			return l.flaw("rate %v is not finite: rate.Inf is the one without a limit", r)
		}
		return l.flaw("its rate has been NaN or infinite, which spoils the tokens: make a new limiter")
	}
	return nil
}

// refusal returns why n tokens were refused at t.
func (l *Limiter) refusal(t time.Time, n int, c outbound.Cost) error {
	r, burst := l.Rate.Limit(), l.Rate.Burst()
	if n > burst { // an infinite rate would have admitted it
		return &outbound.CostError{Key: l.Key, Limit: l.limit(r, burst), Cost: c, Err: outbound.ErrTooLarge}
	}
	if r <= 0 {
		return l.flaw("rate %v refills nothing, and of %v tokens %d are asked for", float64(r), l.Rate.TokensAt(t), n)
	}
	// At least 1 ns: a cancelled reservation may have returned tokens since.
	wait := max(1, after(math.Ceil(l.lacks(t, n, r))))
	// Long sums of x/time lose digits, so ask whether the wait is enough. It counts whole
	// nanoseconds, rounded down.
	for range 3 {
		more := after(l.lacks(t.Add(wait), n, r))
		if more <= 0 {
			break
		}
		wait += min(more, maxWait-wait)
	}
	return &outbound.ThrottledError{Key: l.Key, RetryAfter: wait}
}

// lacks returns the nanoseconds from t until there are n tokens.
func (l *Limiter) lacks(t time.Time, n int, r rate.Limit) float64 {
	return (float64(n) - l.Rate.TokensAt(t)) / float64(r) * 1e9
}

// after makes a duration of nanoseconds, and saturates.
func after(ns float64) time.Duration {
	if ns < math.MaxInt64 {
		return time.Duration(ns)
	}
	return maxWait
}

func (l *Limiter) limit(r rate.Limit, burst int) outbound.Limit {
	return outbound.Limit{Capacity: float64(burst), LeakRate: float64(r), Unit: l.Unit}
}

func (l *Limiter) flaw(format string, args ...any) error {
	return &outbound.LimitError{Key: l.Key, Limit: l.limit(l.Rate.Limit(), l.Rate.Burst()), Reason: fmt.Sprintf(format, args...)}
}
