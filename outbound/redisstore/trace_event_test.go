package redisstore_test

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// event draws one of the rare steps: holds, refusals by the API, Resume.
func (t *trace) event(worker int, p *permits) error {
	t.events--
	d := time.Duration(t.r.ExpFloat64() * float64([]time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour}[t.r.IntN(4)]))
	switch k := t.r.IntN(14); {
	case k >= 12 && p != nil:
		left := t.cost()
		left[t.r.IntN(len(left))] = -1
		t.last = func() string { return fmt.Sprint("remaining ", left, " for ", d) }
		return t.both(worker, func(side int, _ *outbound.Bucket) error {
			p.permit(side).Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: left, Wait: d + 1})
			return nil
		})
	case k < 6 && p != nil:
		if t.r.IntN(2) == 0 {
			d = 0
		}
		reason := outbound.Reason(t.r.IntN(4))
		most := t.wait() * time.Duration(t.r.IntN(2))
		t.last = func() string { return fmt.Sprint("refused ", d, ", at most ", most) }
		return t.both(worker, func(side int, _ *outbound.Bucket) error {
			p.permit(side).Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: d, MaxWait: most, Reason: reason})
			return nil
		})
	case k < 8 && p != nil:
		t.last = func() string { return fmt.Sprint("hold ", d, " by a call") }
		return t.both(worker, func(side int, _ *outbound.Bucket) error { p.permit(side).Hold(d + 1); return nil })
	case k < 11:
		t.last = func() string { return fmt.Sprint("hold ", d) }
		return t.both(worker, func(_ int, b *outbound.Bucket) error { return b.Hold(background, d+1) })
	}
	t.last = func() string { return "resume" }
	return t.both(worker, func(_ int, b *outbound.Bucket) error { return b.Resume(background) })
}

// refuse makes a call succeed and the API refuse another one. Mostly the API does not
// slow down in between, so the row of refusals fills fast.
func (t *trace) refuse(worker int) error {
	d := time.Duration(0)
	if t.r.IntN(3) == 0 {
		d = time.Duration(t.r.IntN(3000))
	}
	t.last = func() string { return fmt.Sprint("a success, and refused ", d) }
	cost := outbound.Cost{}
	for i := range t.limits {
		cost[t.limits[i].Unit] = 1e-3
	}
	calls := 1 + t.r.IntN(4)
	if t.r.IntN(20) == 0 {
		calls += t.r.IntN(200)
	}
	costs := slices.Repeat([]outbound.Cost{cost}, calls)
	var last [2]outbound.Permit
	for i := range 2 {
		var tickets [2][]outbound.Ticket
		err := t.both(worker, func(side int, b *outbound.Bucket) error {
			k := outbound.Booking{Costs: costs, Wait: math.MaxInt64, Horizon: math.MaxInt64}
			err := b.Book(background, &k)
			tickets[side] = k.Tickets
			return err
		})
		if err != nil || len(tickets[0]) == 0 || len(tickets[1]) == 0 {
			return err
		}
		for side := range last {
			last[side] = tickets[side][0].Permit()
		}
		err = t.both(worker, func(side int, _ *outbound.Bucket) error {
			if i == 0 {
				last[side].Done()
			} else {
				last[side].Refused(d)
			}
			return nil
		})
		if err != nil {
			return err
		}
		costs = costs[:1]
	}
	return nil
}

// setLimits sets other limits for all workers, or none.
func (t *trace) setLimits(worker int) error {
	t.events--
	var limits []outbound.Limit
	switch t.r.IntN(6) {
	case 0:
	case 1:
		limits = t.limits // limits that may have been set already
	default:
		limits = t.someLimits()
		for i := range limits { // mostly another shape of the same limit
			if i < len(t.limits) && t.r.IntN(4) > 0 {
				limits[i] = limits[i].Of(t.limits[i].Unit, t.limits[i].Name)
			}
		}
		for i := range limits {
			for j := range i {
				if limits[i].Unit == limits[j].Unit && limits[i].Name == limits[j].Name {
					limits[i].Name += fmt.Sprint(" too ", i)
				}
			}
		}
	}
	t.last = func() string { return fmt.Sprint("set limits ", limits) }
	err := t.both(worker, func(_ int, b *outbound.Bucket) error { return b.SetLimits(background, limits...) })
	if err == nil {
		err = t.both(worker, func(side int, b *outbound.Bucket) error {
			all, err := b.States(background)
			limits := make([]outbound.Limit, len(all))
			for i := range all {
				limits[i] = all[i].Limit
			}
			if side == 1 && err == nil && !slices.Equal(limits, t.limits) {
				return fmt.Errorf("the limits are %v, want %v", t.limits, limits)
			}
			t.limits = limits
			return err
		})
	}
	// The other workers mostly learn of it with their next operation.
	for other := range t.left {
		if err == nil && other != worker && t.r.IntN(4) == 0 {
			err = t.both(other, func(_ int, b *outbound.Bucket) error { _, err := b.State(background); return err })
		}
	}
	return err
}
