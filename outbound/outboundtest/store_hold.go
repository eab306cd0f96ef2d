package outboundtest

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var holdCases = []storeCase{
	{sentence: "no call leaves while a hold lasts, and a shorter one changes nothing", check: checkHolds},
	{sentence: "after a hold one call leaves and then they drip", check: checkDripsAfterHold},
	{sentence: "in a pause the limits leak on, and nothing drips afterwards", check: checkPauses},
	{sentence: "a hold moves every reservation", check: checkMovesAll},
	{sentence: "Resume ends a hold, and reservations are void", check: checkResumes},
	{sentence: "refusals of one episode count once, and the clock slows only after a success", check: checkRefusals},
	{sentence: "a refusal without a success in between doubles the hold", check: checkDoubles},
	{sentence: "a hold is doubled no further than the report says", check: checkDoublesAtMost},
	{sentence: "a key remembers what its latest refusals have taught", check: checkLearns},
	{sentence: "no call leaves until the reset if what remained was used since", check: checkRemains},
}

func checkHolds(e *exam) {
	p := e.process(slow(100))
	begin := time.Now()
	for _, c := range []struct{ hold, rem time.Duration }{{3, 3}, {1, 3}, {3, 3}, {5, 5}} {
		p.hold(c.hold * time.Hour)
		r := p.refuse(1)
		e.within("the end of the hold", r.Wait, c.rem*time.Hour, time.Since(begin)+time.Minute)
		e.within("the end of the hold", r.State.Rem, c.rem*time.Hour, time.Since(begin)+time.Minute)
	}
	p.levels(99) // the limit is full, except for the call that leaves after the hold
}

func checkDripsAfterHold(e *exam) {
	p := e.process(leaky(10, 0.2), named(slow(1000), 1, "long")) // slow enough for a busy machine
	p.hold(100 * time.Millisecond)
	time.Sleep(110 * time.Millisecond)
	p.admit(1)
	if r := p.refuse(2, 1); r.Wait <= 0 || r.Wait > 10100*time.Millisecond {
		e.failf("retry after %v", r.Wait)
	}
	if level := p.levels().State.Level[1]; math.Abs(level-1) > 0.01 {
		e.failf("the longer limit has level %v, want 1", level)
	}
}

func checkPauses(e *exam) {
	p := e.process(leaky(10, 50), moving(20, time.Hour))
	pause := func(d time.Duration) store.Reply {
		e.Helper()
		return p.report(-1, store.Report{Kind: store.Paused, Wait: d, Reason: 3})
	}
	p.admit(10)
	r := pause(100 * time.Millisecond)
	if r.State.Rem != 100*time.Millisecond || r.State.Why != 3 {
		e.failf("paused for %v with reason %d, want 100ms with 3", r.State.Rem, r.State.Why)
	}
	if r := p.step(store.Op{Action: store.Book, Costs: []store.Units{p.of(0)}}); r.State.Rem > 0 && !r.Refused {
		e.failf("a call leaves %v before the end of the pause", r.State.Rem)
	}
	time.Sleep(110 * time.Millisecond)
	p.admit(4) // of 10 units 5 have leaked in the pause
	pause(time.Hour)
	p.refuse(0, 1)
	p.step(store.Op{Action: store.Resume})
	p.admit(0, 6)
}

func checkMovesAll(e *exam) {
	begin := time.Now()
	p := e.process(leaky(1, 0.001))
	p.admit(1)
	call, in := p.reserve(1)
	p.hold(2 * time.Hour)
	r := p.levels()
	moved, _ := r.State.Due(p.charges[0][call].Place)
	e.within("a reservation in a hold of 2h", moved, in+2*time.Hour, time.Since(begin))
}

func checkResumes(e *exam) {
	p := e.process(slow(1))
	p.admit(1)
	void, _ := p.reserve(1)
	p.hold(time.Hour)
	p.step(store.Op{Action: store.Resume})
	if r := p.refuse(1); r.State.Rem > 0 {
		e.failf("held for %v", r.State.Rem)
	}
	r := p.levels(1)
	if r.State.Born == p.charges[0][void].Born {
		e.failf("the reservation from before stands")
	}
	// It gives nothing back, if it is returned or settled.
	p.report(void, store.Report{Kind: store.Settled})
	p.levels(1)
	p.back(void)
	p.levels(1)
}

func checkRefusals(e *exam) {
	p := e.process(slow(100))
	first, second, third := p.admit(1), p.admit(1), p.admit(1)
	p.report(third, store.Report{Kind: store.Succeeded})
	p.admit(1)
	p.report(first, store.Report{Kind: store.Refused, Wait: time.Hour})
	r := p.report(second, store.Report{Kind: store.Refused, Wait: 2 * time.Hour})
	if math.Abs(r.State.Speed-0.9) > 0.01 || r.State.Rem > 2*time.Hour || r.State.Rem < 119*time.Minute {
		e.failf("speed %v, held for %v; want 0.9, 2h", r.State.Speed, r.State.Rem)
	}
	p = e.process(slow(100))
	r = p.report(p.admit(1), store.Report{Kind: store.Refused})
	if r.State.Speed != 1 || r.State.Rem > time.Second || r.State.Rem == 0 {
		e.failf("a refusal before any success: speed %v, held for %v; want 1, 1s", r.State.Speed, r.State.Rem)
	}
}

func checkDoubles(e *exam) {
	p := e.process(leaky(1000, 1000))
	r := p.report(p.admit(1), store.Report{Kind: store.Refused, Wait: 20 * time.Millisecond})
	if r.State.Rem > 20*time.Millisecond || r.State.Speed != 1 {
		e.failf("the first refusal: held for %v at speed %v, want 20ms at 1", r.State.Rem, r.State.Speed)
	}
	time.Sleep(25 * time.Millisecond)
	r = p.report(p.admit(1), store.Report{Kind: store.Refused, Wait: 20 * time.Millisecond})
	if r.State.Rem != 2*time.Second || r.State.Speed != 1 {
		e.failf("the second refusal: held for %v at speed %v, want 2s at 1", r.State.Rem, r.State.Speed)
	}
}

func checkDoublesAtMost(e *exam) {
	p := e.process(leaky(1000, 1000))
	const most = 20 * time.Millisecond
	for i := range 3 {
		r := p.report(p.admit(1), store.Report{Kind: store.Refused, MaxWait: most})
		if r.State.Rem > most {
			e.failf("refusal %d: held for %v, want at most %v", i, r.State.Rem, most)
		}
		time.Sleep(most + 5*time.Millisecond)
	}
}

// checkLearns has every other call refused. How far the clock slows down then depends on all
// refusals of the last rows.
func checkLearns(e *exam) {
	p := e.process(leaky(1e9, 1e9))
	for range 40 {
		p.report(p.admit(1), store.Report{Kind: store.Succeeded})
		p.report(p.admit(1), store.Report{Kind: store.Refused, Wait: time.Millisecond})
		time.Sleep(2 * time.Millisecond)
	}
}

// checkRemains reports how many units remained when a call left. Only once calls have taken so many
// since is the key held.
func checkRemains(e *exam) {
	p := e.process(slow(100), moving(50, time.Hour))
	call := p.admit(1)
	for range 4 {
		p.admit(1)
	}
	remaining := func(left ...float64) time.Duration {
		e.Helper()
		return p.report(call, store.Report{Kind: store.Remaining, Used: p.of(left...), Wait: time.Hour, Reason: 4}).State.Rem
	}
	if d := remaining(-1); d > 0 {
		e.failf("the API has said nothing, and the key is held for %v", d)
	}
	if d := remaining(5, -1) + remaining(-1, 5); d > 0 {
		e.failf("of 5 that remained 4 were used, and the key is held for %v", d)
	}
	last := p.admit(1)
	if d := remaining(-1, 5); d != time.Hour {
		e.failf("of 5 that remained 5 were used, and the key is held for %v", d)
	}
	if r := p.refuse(1); r.State.Why != 4 {
		e.failf("held for reason %d, want 4", r.State.Why)
	}
	p.report(last, store.Report{Kind: store.Held, Wait: 2 * time.Hour, Reason: 5})
	if r := p.refuse(1); r.State.Why != 5 || r.Wait <= time.Hour {
		e.failf("held for reason %d and %v, want 5 and 2h", r.State.Why, r.Wait)
	}
	p.step(store.Op{Action: store.Resume})
	if r := p.levels(); r.State.Rem > 0 {
		e.failf("held for %v after a Resume", r.State.Rem)
	}
}
