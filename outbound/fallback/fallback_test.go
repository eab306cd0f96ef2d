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

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// link is the way to a store. While it is cut, each trip fails after a while.
type link struct {
	store.Store
	mu    sync.Mutex // protects what follows
	err   error      // nil: it is not cut
	hangs time.Duration
	slow  time.Duration // how long each trip takes that is not cut
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
	if hangs > 0 {
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
	limits []store.Limit
	number int64
	base   uint64
}

func newProcess(t *testing.T, s store.Store, f *Store, limits ...store.Limit) *process {
	p := &process{link: &link{Store: s}, t: t, f: f, key: "key", limits: limits, base: store.Hash(limits)}
	f.Store = p.link
	return p
}

// periods returns the hour and the next, for each limit by the calendar.
func periods(limits []store.Limit) (all []store.Period) {
	hour := time.Now().Unix() / 3600 * 3600
	for i := range limits {
		if limits[i].Kind.Calendar() {
			all = append(all, store.Period{Begin: hour, End: hour + 3600, Next: hour + 7200})
		} else {
			all = append(all, store.Period{})
		}
	}
	for i := range limits {
		if limits[i].Kind.Calendar() {
			return all
		}
	}
	return nil
}

// do carries a step out, and adopts what the reply brings.
func (p *process) do(op store.Op) (store.Reply, error) {
	p.t.Helper()
	op.Limits, op.Number, op.Base, op.Periods = p.limits, p.number, p.base, periods(p.limits)
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
		p.t.Fatalf("three seconds after the store is back, %d keys are away: %v", is.Keys, is.Err)
	}
}

// level checks the level of a limit in the store itself.
func (p *process) level(want float64) {
	p.t.Helper()
	p.between(want-0.05, want+0.05)
}

func (p *process) between(least, most float64) {
	p.t.Helper()
	r, err := p.link.Store.Update(context.Background(), p.key, &store.Op{Limits: p.limits, Number: p.number, Periods: periods(p.limits)})
	if err != nil || r.State.Level[0] < least || r.State.Level[0] > most {
		p.t.Errorf("the store has level %v, %v; want %v to %v", r.State.Level[0], err, least, most)
	}
}

func leaky(capacity, rate float64) store.Limit { return store.Limit{Capacity: capacity, Rate: rate} }

func window(n float64, w time.Duration) store.Limit {
	return store.Limit{Kind: store.Window, Capacity: n, Rate: n / w.Seconds(), Window: w}
}

// bubble runs a test in a bubble, and ends its timers.
func bubble(t *testing.T, test func(t *testing.T)) { t.Helper(); synctest.Test(t, test) }

func TestStore_ConformsWhileAvailable(t *testing.T) {
	for sentence, check := range outboundtest.StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			bubble(t, func(t *testing.T) { check(t, &Store{Store: store.NewMemory(), Share: 0.5}) })
		})
	}
}

func TestStore_RefusesBadFields(t *testing.T) {
	m := store.NewMemory()
	for _, f := range []*Store{nil, {}, {Store: m, Share: -0.1}, {Store: m, Share: 1.1}, {Store: m, Share: math.NaN()}, {Store: m, Share: 0.5, Unlimited: true}} {
		if _, err := f.Update(t.Context(), "key", &store.Op{Limits: []store.Limit{leaky(1, 1)}}); err == nil {
			t.Errorf("%+v has no error", f)
		}
	}
}

func TestStore_WithoutShareCallsFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{}, leaky(10, 1))
		p.set(errCut)
		if _, err := p.do(cost(1)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("the call fails with %v", err)
		}
		if is := p.f.State(); !is.Unavailable || is.Keys != 1 || is.Err == nil {
			t.Errorf("%+v", is)
		}
		p.set(nil)
		if r := p.must(cost(1)); len(r.Charges) != 1 {
			t.Error("the store is back, and a call is refused")
		}
		time.Sleep(time.Second)
		if is := p.f.State(); is.Unavailable || is.Outages != 1 {
			t.Errorf("%+v", is)
		}
	})
}

// A share is a part of every limit, and begins full, so that the switch causes no burst.
func TestStore_ShareBeginsFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.25}, leaky(40, 20), store.Limit{Unit: 1, Capacity: 400, Rate: 300})
		p.cutOff()
		r := p.must(cost(1))
		if !r.Refused || r.Wait != time.Second/5 || r.Limit != 0 || len(r.Share) != 2 || r.Share[0].Capacity != 10 || r.Share[1].Rate != 75 {
			t.Errorf("refused %v for %v by limit %d of %v", r.Refused, r.Wait, r.Limit, r.Share)
		}
		if r.Limits != nil || r.Number != p.number || r.State.Level[0] != 40 {
			t.Errorf("the reply brings limits %v by %d, and level %v of the whole limit", r.Limits, r.Number, r.State.Level[0])
		}
		time.Sleep(time.Second)
		if n := p.take(); n != 5 {
			t.Errorf("after a second %d calls are admitted, want 5", n)
		}
		time.Sleep(time.Hour)
		if n := p.take(); n != 10 {
			t.Errorf("after an hour %d calls are admitted, want 10", n)
		}
		if _, err := p.do(cost(11)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a call larger than the share: %v", err)
		}
		for _, action := range []store.Action{store.Resume, store.Replace} {
			if _, err := p.do(store.Op{Action: action, Replacement: p.limits}); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%v: %v", action, err)
			}
		}
		p.mend()
	})
}

func TestStore_ChargesWhatWasSpent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(40, 0.01))
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
		// A call of the outage returns nothing to the store.
		p.must(store.Op{Action: store.Book, Unused: []store.Charge{first}})
		p.level(4)
		if r := p.must(cost(30)); len(r.Charges) != 1 || r.Share != nil {
			t.Errorf("a call of 30 of 40 has %d charges, of a share %v", len(r.Charges), r.Share)
		}
	})
}

func TestStore_ChargesAtMostTheCapacityAndNothingThatHasDrained(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 1}, leaky(40, 1))
		p.cutOff()
		for range 3 {
			time.Sleep(40 * time.Second)
			p.take()
		}
		p.mend()
		p.between(37, 38) // it was full within a second
		p.must(store.Op{Action: store.Resume})
		p.cutOff()
		time.Sleep(40 * time.Second)
		p.take()
		time.Sleep(41 * time.Second)
		p.mend()
		p.level(0)
	})
}

func TestStore_HoldAndSlowDownGoOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := store.NewMemory()
		p, other := newProcess(t, m, &Store{Share: 0.5}, leaky(40, 20)), newProcess(t, m, &Store{Share: 0.5}, leaky(40, 20))
		charge := p.must(cost(1)).Charges[0]
		p.must(store.Op{Reports: []store.Report{{Kind: store.Succeeded, Epoch: charge.Epoch}}})
		p.must(store.Op{Reports: []store.Report{{Kind: store.Refused, Charge: &charge, Epoch: charge.Epoch, Wait: time.Minute}}})
		p.cutOff()
		if r := p.must(cost(1)); r.State.Rem <= 59*time.Second || r.State.Speed > 0.91 {
			t.Errorf("held for %v at speed %v", r.State.Rem, r.State.Speed)
		}
		time.Sleep(70 * time.Second)
		late := p.must(cost(1)).Charges[0]
		// A refusal of a call of the outage holds here, and the store learns of the rest.
		p.must(store.Op{Reports: []store.Report{{Kind: store.Refused, Charge: &late, Epoch: late.Epoch, Wait: time.Hour}}})
		p.mend()
		if r := other.must(cost(1)); r.State.Rem < 59*time.Minute {
			t.Errorf("after a hold of an hour in an outage another process is held for %v", r.State.Rem)
		}
	})
}

// Three refusals of one burst of calls that the store had admitted count once.
func TestStore_RefusalOfAnEarlierCallHolds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(40, 20))
		var charges []store.Charge
		for range 3 {
			charges = append(charges, p.must(cost(1)).Charges...)
		}
		p.cutOff()
		for i := range charges {
			r := p.must(store.Op{Reports: []store.Report{{Kind: store.Refused, Charge: &charges[i], Epoch: charges[i].Epoch}}})
			if r.State.Rem != time.Second {
				t.Errorf("after %d refusals held for %v, want 1s", i+1, r.State.Rem)
			}
		}
		p.mend()
	})
}

// The share of a window begins as if its units had left at the switch, and again in each outage.
func TestStore_ShareOfWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, l := range []store.Limit{window(40, time.Minute), {Kind: store.Fixed, Capacity: 40, Rate: 40. / 60, Window: time.Minute}} {
			p := newProcess(t, store.NewMemory(), &Store{Share: 0.25}, l)
			p.cutOff()
			if share := p.must(store.Op{}).Share; share[0].Kind != store.Window { // windows of processes begin at different times
				t.Errorf("the share is %v", share)
			}
			time.Sleep(59 * time.Second)
			if n := p.take(); n != 0 {
				t.Errorf("%d calls are admitted within a window of the switch", n)
			}
			time.Sleep(2 * time.Second)
			if n := p.take(); n != 10 {
				t.Errorf("%d calls are admitted after a window, want 10", n)
			}
			p.mend()
			p.level(10)
			p.cutOff()
			time.Sleep(59 * time.Second)
			if n := p.take(); n != 0 {
				t.Errorf("%d calls are admitted within a window of the second switch", n)
			}
			time.Sleep(2 * time.Second)
			p.take()
			time.Sleep(61 * time.Second)
			p.mend()
			p.level(0)
		}
	})
}

// While calls need both a share and the store, the share begins again, so that no process uses twice
// what it has used just before the return.
func TestStore_ShareBeginsAgainAtTheReturn(t *testing.T) {
	for most, l := range map[int]store.Limit{3: leaky(40, 20), 0: window(40, time.Minute)} {
		bubble(t, func(t *testing.T) {
			p := newProcess(t, store.NewMemory(), &Store{Share: 0.25}, l)
			p.cutOff()
			time.Sleep(2 * time.Minute)
			p.set(nil)
			time.Sleep(again + 100*time.Millisecond)
			if n := p.take(); n > most {
				t.Errorf("%d calls left at the return with %v, want %d", n, l, most)
			}
			time.Sleep(3 * time.Second)
			if n := p.take(); n < 35 {
				t.Errorf("%d calls left with the store, of a capacity of 40", n)
			}
		})
	}
}

// A queue's reservations are as far apart as the share allows while calls need both.
func TestStore_ReservationsNeedBoth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.25}, leaky(40, 20))
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
}

// The share of a period is that of what was left when the store last said so.
func TestStore_ShareOfPeriod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Minute)))
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.25}, store.Limit{Kind: store.Hourly, Capacity: 40})
		p.must(cost(20))
		p.cutOff()
		if n := p.take(); n != 5 {
			t.Errorf("%d calls of a quarter of 20 are admitted", n)
		}
		p.mend()
		p.level(25)
		p.cutOff()
		time.Sleep(time.Hour)
		if n := p.take(); n != 10 {
			t.Errorf("%d calls of a quarter of 40 are admitted in the next hour", n)
		}
		// No call comes for hours. Then the store's time is in no period that it was told.
		time.Sleep(3 * time.Hour)
		p.set(nil)
		time.Sleep(time.Second)
		p.must(cost(1))
		p.level(1)
		p.mend()
	})
}

// A key whose periods are long over is charged with what is not over, without a call.
func TestStore_ChargesWherePeriodsAreOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(40, 0.0001), store.Limit{Unit: 1, Kind: store.Hourly, Capacity: 40})
		p.must(store.Op{})
		p.cutOff()
		time.Sleep(14*time.Hour + time.Minute) // two units
		if n := p.take(); n != 2 {
			t.Errorf("%d calls are admitted, want 2", n)
		}
		time.Sleep(3 * time.Hour)
		p.mend()
		p.between(1.9, 2)
	})
}

// What calls spend until the store is charged is charged too, however long its trips take.
func TestStore_ChargesAllThatWasSpent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(4e6, 1))
		p.cutOff()
		time.Sleep(1000 * time.Second)
		p.mu.Lock()
		p.slow = 2 * time.Second
		p.mu.Unlock()
		p.set(nil)
		spent, begin := 0, time.Now()
		for time.Since(begin) < 8*time.Second {
			spent += len(p.must(cost(1)).Charges)
			time.Sleep(20 * time.Millisecond)
		}
		if is := p.f.State(); is.Unavailable || spent < 100 {
			t.Errorf("%d calls are admitted, %+v", spent, is)
		}
		p.between(float64(spent)-8, float64(spent))
	})
}

func TestStore_ChargesByLimitsThatWereSetMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := store.NewMemory()
		p, other := newProcess(t, m, &Store{Share: 0.5}, leaky(40, 0.01)), newProcess(t, m, &Store{Share: 0.5}, leaky(40, 0.01))
		p.cutOff()
		other.must(store.Op{})
		other.must(store.Op{Action: store.Replace, Replacement: []store.Limit{leaky(50, 0.01), {Name: "new", Unit: 1, Capacity: 30, Rate: 0.01}}})
		time.Sleep(1000 * time.Second)
		p.take()
		p.mend()
		other.level(5)
		if r := p.must(cost(1)); !r.Stale || len(p.limits) != 2 {
			t.Errorf("stale %v, and %d limits are in force", r.Stale, len(p.limits))
		}
	})
}

// Of two buckets of this process one has heard of other limits.
func TestStore_OneSetOfLimitsForAKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(40, 20))
		p.must(store.Op{})
		p.must(store.Op{Action: store.Replace, Replacement: []store.Limit{leaky(20, 10)}})
		p.cutOff()
		fresh := *p
		fresh.limits, fresh.number = []store.Limit{leaky(40, 20)}, 0
		time.Sleep(time.Hour)
		if n := fresh.take(); n != 10 || fresh.limits[0].Capacity != 20 {
			t.Errorf("a bucket that has not heard has admitted %d calls of half of 20, by %v", n, fresh.limits)
		}
		fresh.limits, fresh.number = []store.Limit{leaky(40, 20), {Name: "b", Unit: 1, Capacity: 1, Rate: 1}}, 0
		op := store.Op{Limits: fresh.limits, Base: 7}
		r, err := p.f.Update(t.Context(), p.key, &op)
		if err != nil || !r.Stale || !store.Equal(r.Limits, p.limits) || !op.Yields(&r) {
			t.Errorf("limits of another shape: stale %v, %v, brought %v, yields %v", r.Stale, err, r.Limits, op.Yields(&r))
		}
		p.mend()
		// The bucket that has heard comes later.
		fresh.limits, fresh.number = []store.Limit{leaky(40, 20)}, 0
		fresh.key, p.key = "another", "another"
		fresh.link.Store = store.NewMemory() // it serves this key to no one
		fresh.cutOff()
		p.number++
		if r := p.must(cost(1)); r.Share[0].Capacity != 10 || r.Limits != nil {
			t.Errorf("half of %v is %v, and the reply brings %v", p.limits, r.Share, r.Limits)
		}
		p.mend()
	})
}

func TestStore_Unlimited(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Unlimited: true}, leaky(40, 0.01), window(1, time.Hour))
		p.cutOff()
		if n := p.take(); n != 1000 {
			t.Errorf("%d of 1000 calls are admitted", n)
		}
		p.mend()
		p.level(40)
	})
}

func TestStore_ShareBelowAUnit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		count := func(minutes int, share float64, l store.Limit) (n int) {
			p := newProcess(t, store.NewMemory(), &Store{Share: share}, l)
			p.cutOff()
			for range minutes * 3 {
				time.Sleep(20 * time.Second)
				if r, err := p.do(cost(1)); err == nil {
					n += len(r.Charges)
				}
			}
			p.mend()
			return n
		}
		for _, l := range []store.Limit{leaky(1, 1./60), window(1, time.Minute)} { // half a unit a minute
			if n := count(60, 0.5, l); n < 28 || n > 30 {
				t.Errorf("half of %v has admitted %d calls in an hour, want 30", l, n)
			}
		}
		if n := count(180, 0.1, store.Limit{Kind: store.Hourly, Capacity: 5}); n != 0 {
			t.Errorf("half a call an hour has admitted %d calls", n)
		}
		if n := count(60, math.SmallestNonzeroFloat64, leaky(10, 1)); n != 0 {
			t.Errorf("the smallest share has admitted %d calls", n)
		}
	})
}

// An error of one key goes to its callers, and other keys go on.
func TestStore_ErrorOfOneKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(40, 0.01))
		denied := errors.New("no permission")
		p.set(denied)
		if _, err := p.do(cost(1)); !errors.Is(err, denied) || p.f.State().Unavailable {
			t.Errorf("%v, %+v", err, p.f.State())
		}
		p.cutOff()
		time.Sleep(1000 * time.Second)
		p.take()
		p.set(denied)
		time.Sleep(time.Second)
		if _, err := p.do(cost(1)); !errors.Is(err, denied) {
			t.Errorf("the store denies the key, and its call is answered with %v", err)
		}
		p.set(nil)
		time.Sleep(2 * time.Second)
		p.between(4, 5) // it is charged when the store takes it
	})
}

func TestStore_SwitchesAreReportedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var heard []string
		f := &Store{Share: 0.5}
		f.OnSwitch = func(away bool, err error) {
			heard = append(heard, fmt.Sprint(away, errors.Is(err, store.ErrUnavailable), f.State().Unavailable))
		}
		p := newProcess(t, store.NewMemory(), f, leaky(40, 20))
		for range 2 {
			p.cutOff()
			time.Sleep(time.Minute)
			if is := f.State(); time.Since(is.Since) != time.Minute {
				t.Errorf("away since %v", is.Since)
			}
			p.mend()
		}
		if got := fmt.Sprint(heard); got != "[true true true false false false true true true false false false]" {
			t.Error(got)
		}
		if is := f.State(); is.Outages != 2 {
			t.Errorf("%+v", is)
		}
	})
}
