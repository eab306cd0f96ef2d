package fallback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// link is the way to a store. While it is cut, each request fails after a while.
type link struct {
	store.Store
	mu    sync.Mutex // protects what follows
	err   error      // nil: it is not cut
	hangs time.Duration
	slow  time.Duration // how long each request takes that is not cut
}

var errCut = fmt.Errorf("%w: connection refused", store.ErrUnavailable)

func (l *link) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *link) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	l.mu.Lock()
	err, hangs, slow := l.err, l.hangs, l.slow
	l.mu.Unlock()
	if err == nil {
		time.Sleep(slow)
		return l.Store.Update(ctx, key, op)
	}
	if hangs > 0 { // with -race the runtime of Go may crash in a select with a timer of 0
		select {
		case <-time.After(hangs):
		case <-ctx.Done():
			return store.Reply{}, ctx.Err()
		}
	}
	return store.Reply{}, err
}

// process is a process of a fleet that uses one key of a Store.
type process struct {
	*link
	t      *testing.T
	f      *Store
	key    string
	limits limits
	number int64
	base   uint64
}

type limits = []store.Limit

func newProcess(t *testing.T, s store.Store, f *Store, l limits) *process {
	p := &process{link: &link{Store: s}, t: t, f: f, key: "key", limits: l, base: store.Hash(l)}
	f.Store = p.link
	return p
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// bubble runs a scenario of a process in virtual time. Its name says what holds, and its store is in memory.
func bubble(t *testing.T, name string, f *Store, l limits, scenario func(t *testing.T, p *process)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { scenario(t, newProcess(t, store.NewMemory(), f, l)) })
	})
}

// another returns another process with a half of the same store's limits.
func (p *process) another() *process {
	return newProcess(p.t, p.link.Store, &Store{Share: 0.5}, p.limits)
}

// do carries a step out, and adopts what the reply brings.
func (p *process) do(op store.Op) (store.Reply, error) {
	p.t.Helper()
	op.Limits, op.Number, op.Base, op.Periods = p.limits, p.number, p.base, calendar.New(p.limits).At(unix())
	r, err := p.f.Update(context.Background(), p.key, &op)
	if r.Limits != nil {
		p.limits, p.number = r.Limits, r.Number
	}
	return r, err
}

// must is do for a step that does not fail.
func (p *process) must(op store.Op) store.Reply {
	p.t.Helper()
	r, err := p.do(op)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func cost(n float64) store.Op {
	return store.Op{Action: store.Book, Costs: []store.Units{{n, n, n}}}
}

// take acquires units as often as there are some, at most 1000 times.
func (p *process) take() (n int) {
	p.t.Helper()
	for n < 1000 && len(p.must(cost(1)).Charges) == 1 {
		n++
	}
	return n
}

// takes checks how many calls are admitted after a while.
func (p *process) takes(want int, after time.Duration) {
	p.t.Helper()
	time.Sleep(after)
	n := p.take()
	errorIf(p.t, n != want, "%d calls are admitted, want %d", n, want)
}

// cutOff makes the store unavailable, and lets the key notice.
func (p *process) cutOff() {
	p.t.Helper()
	p.set(errCut)
	p.must(store.Op{})
}

// mend makes the store available, and waits until it is used.
func (p *process) mend() {
	p.t.Helper()
	p.set(nil)
	time.Sleep(3 * time.Second)
	if is := p.f.State(); is.Unavailable {
		p.t.Fatalf("three seconds after the store is available, %d keys are away: %v", is.Keys, is.Err)
	}
}

// level checks the level of a limit in the store itself.
func (p *process) level(want float64) {
	p.t.Helper()
	p.between(want-0.05, want+0.05)
}

func (p *process) between(least, most float64) {
	p.t.Helper()
	r, err := p.link.Store.Update(context.Background(), p.key, &store.Op{Limits: p.limits, Number: p.number, Periods: calendar.New(p.limits).At(unix())})
	errorIf(p.t, err != nil || r.State.Level[0] < least || r.State.Level[0] > most,
		"the store has level %v, %v; want %v to %v", r.State.Level[0], err, least, most)
}

func leaky(capacity, rate float64) store.Limit { return store.Limit{Capacity: capacity, Rate: rate} }

func window(n float64, w time.Duration) store.Limit {
	return store.Limit{Kind: store.Window, Capacity: n, Rate: n / w.Seconds(), Window: w}
}

// While the store is available, a Store conforms to the contract of stores.
func TestStore_ConformsWhileAvailable(t *testing.T) {
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, &Store{Store: store.NewMemory(), Share: 0.5}) })
		})
	}
}

// Fields that contradict each other are an error of each call.
func TestStore_RefusesBadFields(t *testing.T) {
	m := store.NewMemory()
	for _, f := range []*Store{nil, {}, {Store: m, Share: -0.1}, {Store: m, Share: 1.1}, {Store: m, Share: math.NaN()}, {Store: m, Share: 0.5, Unlimited: true}} {
		_, err := f.Update(t.Context(), "key", &store.Op{Limits: limits{leaky(1, 1)}})
		errorIf(t, err == nil, "%+v has no error", f)
	}
}

// Without its store a process has its share of each limit.
func TestStore_SharesWhileUnavailable(t *testing.T) {
	bubble(t, "Without a Share calls fail with the store's error, until the store is available", &Store{}, limits{leaky(10, 1)}, func(t *testing.T, p *process) {
		p.set(errCut)
		_, err := p.do(cost(1))
		errorIf(t, !errors.Is(err, store.ErrUnavailable), "the call fails with %v", err)
		is := p.f.State()
		errorIf(t, !is.Unavailable || is.Keys != 1 || is.Err == nil, "%+v", is)
		p.set(nil)
		r := p.must(cost(1))
		errorIf(t, len(r.Charges) != 1, "the store is available, and a call is refused")
		time.Sleep(time.Second)
		is = p.f.State()
		errorIf(t, is.Unavailable || is.Outages != 1, "%+v", is)
	})
	bubble(t, "A share is a part of every limit, and begins full, so that the switch causes no burst", &Store{Share: 0.25}, limits{leaky(40, 20), {Unit: 1, Capacity: 400, Rate: 300}}, func(t *testing.T, p *process) {
		p.cutOff()
		r := p.must(cost(1))
		errorIf(t, !r.Refused || r.Wait != time.Second/5 || r.Limit != 0 || len(r.Share) != 2 || r.Share[0].Capacity != 10 || r.Share[1].Rate != 75,
			"refused %v for %v by limit %d of %v", r.Refused, r.Wait, r.Limit, r.Share)
		errorIf(t, r.Limits != nil || r.Number != p.number || r.State.Level[0] != 40,
			"the reply brings limits %v by %d, and level %v of the whole limit", r.Limits, r.Number, r.State.Level[0])
		p.takes(5, time.Second)
		p.takes(10, time.Hour)
		for what, op := range map[string]store.Op{
			"a call larger than the share": cost(11),
			"Resume":                       {Action: store.Resume},
			"SetLimits":                    {Action: store.Replace, Replacement: p.limits},
		} {
			_, err := p.do(op)
			errorIf(t, !errors.Is(err, store.ErrUnavailable), "%s: %v", what, err)
		}
		p.mend()
	})
	bubble(t, "A hold and a slow-down from before go on in the outage. The store learns of a hold that a call of the outage has caused", &Store{Share: 0.5}, limits{leaky(40, 20)}, func(t *testing.T, p *process) {
		refused := func(c store.Charge, wait time.Duration) store.Op {
			return store.Op{Reports: []store.Report{{Kind: store.Refused, Charge: &c, Epoch: c.Epoch, Wait: wait}}}
		}
		charge := p.must(cost(1)).Charges[0]
		p.must(store.Op{Reports: []store.Report{{Kind: store.Succeeded, Epoch: charge.Epoch}}})
		p.must(refused(charge, time.Minute))
		p.cutOff()
		if r := p.must(cost(1)); r.State.Rem <= 59*time.Second || r.State.Speed > 0.91 {
			t.Errorf("held for %v at speed %v", r.State.Rem, r.State.Speed)
		}
		time.Sleep(70 * time.Second)
		p.must(refused(p.must(cost(1)).Charges[0], time.Hour))
		p.mend()
		if r := p.another().must(cost(1)); r.State.Rem < 59*time.Minute {
			t.Errorf("after a hold of an hour in an outage another process is held for %v", r.State.Rem)
		}
	})
	bubble(t, "Three refusals of one burst of calls that the store had admitted count once", &Store{Share: 0.5}, limits{leaky(40, 20)}, func(t *testing.T, p *process) {
		var charges []store.Charge
		for range 3 {
			charges = append(charges, p.must(cost(1)).Charges...)
		}
		p.cutOff()
		for i := range charges {
			r := p.must(store.Op{Reports: []store.Report{{Kind: store.Refused, Charge: &charges[i], Epoch: charges[i].Epoch}}})
			errorIf(t, r.State.Rem != time.Second, "after %d refusals held for %v, want 1s", i+1, r.State.Rem)
		}
		p.mend()
	})
	bubble(t, "The share of a period is that of what was left by the store's last reply", &Store{Share: 0.25}, limits{{Kind: store.Hourly, Capacity: 40}}, func(t *testing.T, p *process) {
		// After hours without a call the store's period is over, and a call has another.
		time.Sleep(time.Minute)
		p.must(cost(20))
		p.cutOff()
		p.takes(5, 0)
		p.mend()
		p.level(25)
		p.cutOff()
		p.takes(10, time.Hour)
		time.Sleep(3 * time.Hour)
		p.set(nil)
		time.Sleep(time.Second)
		p.must(cost(1))
		p.level(1)
		p.mend()
	})
	bubble(t, "A bucket without the limits in force counts by those that another bucket of this process has learned, whichever of them comes first", &Store{Share: 0.5}, limits{leaky(40, 20)}, func(t *testing.T, p *process) {
		p.must(store.Op{})
		p.must(store.Op{Action: store.Replace, Replacement: limits{leaky(20, 10)}})
		p.cutOff()
		fresh := *p
		fresh.limits, fresh.number = limits{leaky(40, 20)}, 0
		if fresh.takes(10, time.Hour); fresh.limits[0].Capacity != 20 {
			t.Errorf("a bucket without a reply has admitted half of 20 by %v", fresh.limits)
		}
		op := store.Op{Limits: limits{leaky(40, 20), {Name: "b", Unit: 1, Capacity: 1, Rate: 1}}, Base: 7}
		r, err := p.f.Update(t.Context(), p.key, &op)
		if err != nil || !r.Stale || !store.Equal(r.Limits, p.limits) || !op.Yields(&r, op.Limits) {
			t.Errorf("limits of another shape: stale %v, %v, brought %v, yields %v", r.Stale, err, r.Limits, op.Yields(&r, op.Limits))
		}
		p.mend()
		fresh.limits, fresh.number = limits{leaky(40, 20)}, 0
		fresh.key, p.key = "another", "another"
		fresh.link.Store = store.NewMemory() // no other bucket has used this key there
		fresh.cutOff()
		p.number++
		if r := p.must(cost(1)); r.Share[0].Capacity != 10 || r.Limits != nil {
			t.Errorf("half of %v is %v, and the reply brings %v", p.limits, r.Share, r.Limits)
		}
		p.mend()
	})
	bubble(t, "Unlimited admits every call, and fills the store's buckets afterwards", &Store{Unlimited: true}, limits{leaky(40, 0.01), window(1, time.Hour)}, func(t *testing.T, p *process) {
		p.cutOff()
		p.takes(1000, 0)
		p.mend()
		p.level(40)
	})
	bubble(t, "An error of one key goes to its callers. The key is charged when the store accepts it", &Store{Share: 0.5}, limits{leaky(40, 0.01)}, func(t *testing.T, p *process) {
		denied := errors.New("no permission")
		p.set(denied)
		if _, err := p.do(cost(1)); !errors.Is(err, denied) || p.f.State().Unavailable {
			t.Errorf("%v, %+v", err, p.f.State())
		}
		p.cutOff()
		p.takes(5, 1000*time.Second)
		p.set(denied)
		time.Sleep(time.Second)
		_, err := p.do(cost(1))
		errorIf(t, !errors.Is(err, denied), "the store denies the key, and its call is answered with %v", err)
		p.set(nil)
		time.Sleep(2 * time.Second)
		p.between(4, 5)
	})
}

// When the store is available again, it is charged with what the outage has spent.
func TestStore_ChargesTheOutage(t *testing.T) {
	bubble(t, "The store is charged with what calls have spent, settled and returned in the outage. Calls of the outage return nothing to the store", &Store{Share: 0.5}, limits{leaky(40, 0.01)}, func(t *testing.T, p *process) {
		before := p.must(cost(4)).Charges[0]
		p.cutOff()
		time.Sleep(1000 * time.Second) // five units
		first := p.must(cost(2)).Charges[0]
		last := p.must(cost(1)).Charges
		moved := p.must(store.Op{Action: store.Book, Move: &last[0], Costs: []store.Units{{0.5}}})
		if last = moved.Charges; !moved.Moved || len(last) != 1 {
			t.Fatalf("moved %v", moved.Moved)
		}
		p.must(store.Op{Reports: []store.Report{{Kind: store.Settled, Charge: &first, Used: store.Units{3}}, {Kind: store.Settled, Charge: &before, Used: store.Units{5}}}})
		p.must(store.Op{Action: store.Book, Unused: last})
		// Those return nothing: one is from before the outage, the other was returned.
		last[0].Settled = true
		p.must(store.Op{Action: store.Book, Unused: last, Reports: []store.Report{{Kind: store.Settled, Charge: &before}}})
		p.level(0)
		p.mend()
		p.level(4) // 2 of the first call, 1 more, and 1 more of the call from before
		p.must(store.Op{Action: store.Book, Unused: []store.Charge{first}})
		p.level(4)
		if r := p.must(cost(30)); len(r.Charges) != 1 || r.Share != nil {
			t.Errorf("a call of 30 of 40 has %d charges, of a share %v", len(r.Charges), r.Share)
		}
	})
	bubble(t, "The store is charged with the capacity at most, and with nothing that has leaked since", &Store{Share: 1}, limits{leaky(40, 1)}, func(t *testing.T, p *process) {
		p.cutOff()
		for range 3 {
			p.takes(40, 40*time.Second)
		}
		p.mend()
		p.between(37, 38) // it was full within a second
		p.must(store.Op{Action: store.Resume})
		p.cutOff()
		p.takes(40, 40*time.Second)
		time.Sleep(41 * time.Second)
		p.mend()
		p.level(0)
	})
	bubble(t, "While calls need both, a queue's reservations are as far apart as the share allows", &Store{Share: 0.25}, limits{leaky(40, 20)}, func(t *testing.T, p *process) {
		p.cutOff()
		time.Sleep(time.Minute)
		p.set(nil)
		time.Sleep(again + 100*time.Millisecond)
		op := cost(1)
		op.Wait = time.Minute
		for range 10 {
			p.must(op)
		}
		r := p.must(op)
		if in, _ := r.State.Due(r.Charges[0].Place); r.Share != nil || in < 1500*time.Millisecond || in > 2200*time.Millisecond {
			t.Errorf("the 11th call leaves in %v, want two seconds", in)
		}
		time.Sleep(3 * time.Second)
	})
	bubble(t, "A key whose periods are over is charged with the other limits, without a call", &Store{Share: 0.5}, limits{leaky(40, 0.0001), {Unit: 1, Kind: store.Hourly, Capacity: 40}}, func(t *testing.T, p *process) {
		p.must(store.Op{})
		p.cutOff()
		p.takes(2, 14*time.Hour+time.Minute)
		time.Sleep(3 * time.Hour)
		p.mend()
		p.between(1.9, 2)
	})
	bubble(t, "What calls spend until the store is charged is charged too, however long its requests take", &Store{Share: 0.5}, limits{leaky(4e6, 1)}, func(t *testing.T, p *process) {
		p.slow = 2 * time.Second
		p.cutOff()
		time.Sleep(1000 * time.Second)
		p.set(nil)
		spent, begin := 0, time.Now()
		for time.Since(begin) < 8*time.Second {
			spent += len(p.must(cost(1)).Charges)
			time.Sleep(20 * time.Millisecond)
		}
		is := p.f.State()
		errorIf(t, is.Unavailable || spent < 100, "%d calls are admitted, %+v", spent, is)
		p.between(float64(spent)-8, float64(spent))
	})
	bubble(t, "The store is charged by limits that another process has set meanwhile", &Store{Share: 0.5}, limits{leaky(40, 0.01)}, func(t *testing.T, p *process) {
		p.cutOff()
		other := p.another()
		other.must(store.Op{})
		other.must(store.Op{Action: store.Replace, Replacement: limits{leaky(50, 0.01), {Name: "new", Unit: 1, Capacity: 30, Rate: 0.01}}})
		p.takes(5, 1000*time.Second)
		p.mend()
		other.level(5)
		r := p.must(cost(1))
		errorIf(t, !r.Stale || len(p.limits) != 2, "stale %v, and %d limits are in force", r.Stale, len(p.limits))
	})
}

// The share of a window begins as if its units had left at the switch, and again in each outage.
func TestStore_ShareOfWindow(t *testing.T) {
	for _, l := range []store.Limit{window(40, time.Minute), {Kind: store.Fixed, Capacity: 40, Rate: 40. / 60, Window: time.Minute}} {
		bubble(t, fmt.Sprint(l), &Store{Share: 0.25}, limits{l}, func(t *testing.T, p *process) {
			p.cutOff()
			share := p.must(store.Op{}).Share
			errorIf(t, share[0].Kind != store.Window, "the share is %v", share) // windows of processes begin at different times
			p.takes(0, 59*time.Second)
			p.takes(10, 2*time.Second)
			p.mend()
			p.level(10)
			p.cutOff()
			p.takes(0, 59*time.Second)
			p.takes(10, 2*time.Second)
			time.Sleep(61 * time.Second)
			p.mend()
			p.level(0)
		})
	}
}

// While calls need both a share and the store, the share begins again, so that no process uses twice
// what it has used just before the return.
func TestStore_ShareBeginsAgainAtTheReturn(t *testing.T) {
	for most, l := range map[int]store.Limit{3: leaky(40, 20), 0: window(40, time.Minute)} {
		bubble(t, fmt.Sprint(l), &Store{Share: 0.25}, limits{l}, func(t *testing.T, p *process) {
			p.cutOff()
			time.Sleep(2 * time.Minute)
			p.set(nil)
			time.Sleep(again + 100*time.Millisecond)
			n := p.take()
			errorIf(t, n > most, "%d calls left at the return with %v, want %d", n, l, most)
			time.Sleep(3 * time.Second)
			n = p.take()
			errorIf(t, n < 35, "%d calls left with the store, of a capacity of 40", n)
		})
	}
}

// A share of less than a unit is a whole one, as seldom as the Share allows, except by the calendar.
func TestStore_ShareBelowAUnit(t *testing.T) {
	for _, c := range []struct {
		limit       store.Limit
		share       float64
		least, most int // calls in an hour
	}{
		{leaky(1, 1./60), 0.5, 28, 30},
		{window(1, time.Minute), 0.5, 28, 30},
		{store.Limit{Kind: store.Hourly, Capacity: 5}, 0.1, 0, 0},
		{leaky(10, 1), math.SmallestNonzeroFloat64, 0, 0},
	} {
		bubble(t, fmt.Sprint(c.limit), &Store{Share: c.share}, limits{c.limit}, func(t *testing.T, p *process) {
			p.cutOff()
			n := 0
			for range 60 * 3 {
				time.Sleep(20 * time.Second)
				if r, err := p.do(cost(1)); err == nil {
					n += len(r.Charges)
				}
			}
			if p.mend(); n < c.least || n > c.most {
				t.Errorf("%v of %v has admitted %d calls in an hour, want %d", c.share, c.limit, n, c.most)
			}
		})
	}
}

// OnSwitch reports the begin and the end of each outage, in order.
func TestStore_SwitchesAreReportedInOrder(t *testing.T) {
	var reported []string
	f := &Store{Share: 0.5}
	f.OnSwitch = func(away bool, err error) {
		reported = append(reported, fmt.Sprint(away, errors.Is(err, store.ErrUnavailable), f.State().Unavailable))
	}
	bubble(t, "two outages", f, limits{leaky(40, 20)}, func(t *testing.T, p *process) {
		for range 2 {
			p.cutOff()
			time.Sleep(time.Minute)
			is := f.State()
			errorIf(t, time.Since(is.Since) != time.Minute, "away since %v", is.Since)
			p.mend()
		}
		got := fmt.Sprint(reported)
		errorIf(t, got != "[true true true false false false true true true false false false]", "%v", got)
		is := f.State()
		errorIf(t, is.Outages != 2, "%+v", is)
	})
}
