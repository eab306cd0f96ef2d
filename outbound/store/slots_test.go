package store

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// slotKey is a key of a limit on calls in flight, and its store's clock.
type slotKey struct {
	stored Stored
	now    time.Duration
	n      float64
}

func (k *slotKey) op(a *Ask) *Op {
	return &Op{Limits: []Limit{{Name: "in flight", Capacity: k.n, Rate: k.n / 30}}, Number: k.stored.Number, Action: Allot, Ask: *a}
}

func (k *slotKey) ask(id uint64, keep, want int) Allotment {
	return k.say(Ask{ID: id, Keep: keep, Want: want, Stays: true})
}

func (k *slotKey) say(a Ask) Allotment {
	if a.Lease == 0 {
		a.Lease = DefaultLease
	}
	return k.op(&a).Apply(&k.stored, k.now).Allotment
}

func wantAllotment(t *testing.T, what string, is Allotment, held, keep, free int) {
	t.Helper()
	if is.Held != held || is.Keep != keep || is.Free != free {
		t.Errorf("%s: %+v, want %d held, %d to keep, %d free", what, is, held, keep, free)
	}
}

// A process that gives slots back for others gets none in the same step, although it asks first.
func TestSlots_ReturningProcessGetsNone(t *testing.T) {
	k := slotKey{n: 2, now: time.Hour}
	wantAllotment(t, "the first takes all", k.ask(1, 0, 2), 2, 2, 0)
	wantAllotment(t, "another waits", k.ask(2, 0, 2), 0, 0, 0)
	wantAllotment(t, "the first is to keep its share", k.ask(1, 2, 1), 2, 1, 0)
	wantAllotment(t, "it gives one back", k.ask(1, 1, 1), 1, 1, 1)
	wantAllotment(t, "which is the other's", k.ask(2, 0, 2), 1, 1, 0)
	wantAllotment(t, "with nobody short it gets it back", k.ask(2, 0, 0), 0, 0, 1)
	wantAllotment(t, "again", k.ask(1, 1, 1), 2, 2, 0)
}

// A call that does not wait takes only what those that wait do not need.
func TestSlots_NoCallOvertakesAWaitingOne(t *testing.T) {
	k := slotKey{n: 3, now: time.Hour}
	k.ask(1, 0, 3)
	k.ask(2, 0, 1)
	k.ask(1, 2, 0)
	wantAllotment(t, "one is free, and one waits", k.say(Ask{ID: 3, Want: 1}), 0, 0, 1)
	k.ask(1, 1, 0)
	wantAllotment(t, "two are free, and one waits", k.say(Ask{ID: 3, Want: 2}), 1, 1, 1)
	wantAllotment(t, "the other is there for it", k.ask(2, 0, 1), 1, 1, 0)
}

// What a process says that it holds counts, also if there are too many then. Nothing is granted until
// there are as many as there should be.
func TestSlots_HeldCountAboveN(t *testing.T) {
	k := slotKey{n: 2, now: time.Hour}
	k.ask(1, 0, 2)
	for range 4 {
		k.now += 10 * time.Second
		k.ask(2, 0, 0)
	}
	wantAllotment(t, "the lease of the first has ended", k.ask(2, 0, 2), 2, 2, 0)
	wantAllotment(t, "it comes back", k.ask(1, 2, 1), 2, 0, -2)
	wantAllotment(t, "the second learns of it", k.ask(2, 2, 1), 2, 0, -2)
	wantAllotment(t, "one call ends", k.ask(1, 1, 0), 1, 0, -1)
	wantAllotment(t, "another one", k.ask(1, 0, 0), 0, 0, 0)
	wantAllotment(t, "the second keeps its own", k.ask(2, 2, 0), 2, 2, 0)

	k.n = 1
	k.op(&Ask{})
	limits := k.op(&Ask{}).Limits
	(&Op{Limits: limits, Number: k.stored.Number, Action: Replace, Replacement: limits}).Apply(&k.stored, k.now)
	wantAllotment(t, "n was lowered", k.ask(2, 2, 1), 2, 0, -1)
	k.n = 4
	limits = k.op(&Ask{}).Limits
	(&Op{Limits: limits, Number: k.stored.Number, Action: Replace, Replacement: limits}).Apply(&k.stored, k.now)
	wantAllotment(t, "n was raised", k.ask(2, 2, 1), 3, 3, 1)
}

// If a process whose lease runs is unknown, the key has lost data. Nothing is granted for a third of
// a lease, in which the others say what they hold.
func TestSlots_NothingIsGrantedAfterALoss(t *testing.T) {
	k := slotKey{n: 3, now: time.Hour}
	k.ask(1, 0, 2)
	k.ask(2, 0, 1)
	k.stored = Stored{}
	wantAllotment(t, "the first is unknown", k.say(Ask{ID: 1, Keep: 2, Want: 1, Stays: true, Known: true}), 2, 2, 1)
	k.now += 9 * time.Second
	wantAllotment(t, "a new one gets none", k.ask(3, 0, 1), 0, 0, 1)
	wantAllotment(t, "the second says what it holds", k.say(Ask{ID: 2, Keep: 1, Known: true}), 1, 1, 0)
	k.ask(2, 0, 0)
	k.now += 11 * time.Second
	wantAllotment(t, "a third of a lease has passed", k.ask(3, 0, 1), 1, 1, 0)
}

// A process that is not heard of loses its slots within a lease, whatever lease others have.
func TestSlots_LeaseEnds(t *testing.T) {
	k := slotKey{n: 2, now: time.Hour}
	k.say(Ask{ID: 1, Want: 1, Lease: MinLease})
	k.ask(2, 0, 1)
	for range 3 {
		wantAllotment(t, "the lease runs", k.ask(3, 0, 1), 0, 0, 0)
		k.now += time.Second
	}
	wantAllotment(t, "the short lease has ended", k.ask(3, 0, 1), 1, 1, 0)
	k.now += 30 * time.Second
	wantAllotment(t, "a step counts as a third of a lease", k.ask(4, 0, 1), 0, 0, 0)
	for range 2 {
		k.now += 10 * time.Second
		k.ask(3, 1, 0)
	}
	wantAllotment(t, "the long one too", k.ask(4, 0, 1), 1, 1, 0)
}

// Processes that have gone give their slots up within a lease, although some of them waited: a process
// that comes after them asks often enough to learn of it within a sixth of a lease.
func TestSlots_GoneProcessesGiveThemUp(t *testing.T) {
	for _, lease := range []time.Duration{MinLease, 12 * time.Second, DefaultLease} {
		k := slotKey{n: 1, now: time.Hour}
		for id := range 20 {
			k.say(Ask{ID: uint64(id + 1), Want: 1, Stays: true, Lease: lease})
		}
		gone := k.now
		for r := (Allotment{}); r.Held == 0; k.now += r.Again {
			r = k.say(Ask{ID: 99, Want: 1, Stays: true, Lease: lease})
		}
		if took := k.now - gone; took > lease+lease/6 {
			t.Errorf("lease %v: its slot is granted after %v", lease, took)
		}
	}
}

// An ask that changes nothing is not written, and a look never is. At least each sixth of a lease one
// is.
func TestSlots_NoChangeIsNotWritten(t *testing.T) {
	k := slotKey{n: 2, now: time.Hour}
	do := func(a Ask) bool {
		a.Lease = DefaultLease
		return k.op(&a).Apply(&k.stored, k.now).Changed
	}
	if do(Ask{}) {
		t.Error("a look is written")
	}
	if !do(Ask{ID: 1, Want: 1}) || !do(Ask{ID: 2, Want: 1, Stays: true}) {
		t.Error("a grant is not written")
	}
	k.now += 4 * time.Second
	if do(Ask{ID: 1, Keep: 1}) || !do(Ask{ID: 3}) || do(Ask{ID: 3}) {
		t.Error("an ask that says nothing new is written")
	}
	k.now += time.Second
	if !do(Ask{ID: 1, Keep: 1}) {
		t.Error("an ask is not written after a sixth of a lease")
	}
}

// A key has at most 1,024 processes with slots.
func TestSlots_AtMost1024Processes(t *testing.T) {
	k := slotKey{n: 2000, now: time.Hour}
	for id := range uint64(1024) {
		k.ask(id+1, 0, 1)
	}
	wantAllotment(t, "one more", k.ask(2000, 0, 1), 0, 0, 976)
	wantAllotment(t, "one that has a slot", k.ask(1, 1, 1), 2, 2, 975)
	if n := len(k.stored.Holders.All); n != 1024 {
		t.Errorf("%d holders", n)
	}
}

// Holders are read back as they were written, and no bytes bring a store down.
func TestSlots_HoldersAreReadBack(t *testing.T) {
	k := slotKey{n: 5, now: time.Hour}
	for range 300 {
		k.now += time.Duration(rand.Int64N(int64(8 * time.Second)))
		k.say(Ask{ID: 1 + rand.Uint64N(9), Keep: rand.IntN(3), Want: rand.IntN(3), Stays: rand.IntN(2) > 0, Known: rand.IntN(9) == 0, Lease: MinLease * time.Duration(1+rand.IntN(9))})
		b, _ := k.stored.MarshalBinary()
		var read Stored
		if err := read.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		was, is := k.stored.Holders, read.Holders
		if is == nil || is.Dial != was.Dial || is.Last != was.Last || is.Shut != was.Shut || !slices.Equal(is.All, was.All) {
			t.Fatalf("%+v was written, and %+v read", was, is)
		}
	}
}

func spoiledHolders() map[string]func(*Holders) {
	return map[string]func(*Holders){
		"dial":    func(h *Holders) { h.Dial = -1 },
		"latest":  func(h *Holders) { h.Last = h.Dial + 1 },
		"shut":    func(h *Holders) { h.Shut = h.Dial + MaxLease + 1 },
		"many":    func(h *Holders) { h.All = make([]Holder, mostHolders+1) },
		"id":      func(h *Holders) { h.All[0].ID = 0 },
		"held":    func(h *Holders) { h.All[0].Held = -1 },
		"a lot":   func(h *Holders) { h.All[0].Held = 2*mostSlots + 1 },
		"heard":   func(h *Holders) { h.All[0].Asked = h.Dial + 1 },
		"lease":   func(h *Holders) { h.All[0].Lease = MinLease - 1 },
		"forever": func(h *Holders) { h.All[0].Lease = MaxLease + 1 },
	}
}

// Holders that no step can have left are corrupt. The key forgets them, and grants nothing for a third
// of a lease.
func TestSlots_CorruptHoldersAreForgotten(t *testing.T) {
	for name, spoil := range spoiledHolders() {
		k := slotKey{n: 2, now: time.Hour}
		k.ask(1, 0, 1)
		h := *k.stored.Holders
		h.All = slices.Clone(h.All)
		spoil(&h)
		k.stored.Holders = &h
		b, _ := k.stored.MarshalBinary()
		_ = k.stored.UnmarshalBinary(b)
		r := k.op(&Ask{ID: 2, Want: 1, Lease: DefaultLease}).Apply(&k.stored, k.now)
		if !r.Corrupt || !r.Changed || r.Allotment.Held != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		k.now += 11 * time.Second
		k.ask(2, 0, 0)
		if got := k.ask(2, 0, 1); got.Held != 1 {
			t.Errorf("%s: %+v after a third of a lease", name, got)
		}
	}
}

// Whatever bytes a store has, an ask has a sound answer and leaves a sound key.
func FuzzHolders(f *testing.F) {
	k := slotKey{n: 2, now: time.Hour}
	k.ask(0, 0, 0)
	front, _ := k.stored.MarshalBinary()
	k.ask(1, 0, 2)
	k.ask(2, 0, 2)
	whole, _ := k.stored.MarshalBinary()
	f.Add(whole[len(front):], uint64(2), 1, 1, int64(time.Second))
	f.Add([]byte{0, 0, 0, 0}, uint64(1), -5, math.MaxInt/2, int64(-time.Hour))
	f.Fuzz(func(t *testing.T, tail []byte, id uint64, keep, want int, later int64) {
		var s Stored
		_ = s.UnmarshalBinary(slices.Concat(front, tail))
		now := time.Hour + time.Duration(later)%(100*24*time.Hour)
		a := Ask{ID: id, Keep: keep, Want: want, Stays: want%2 == 0, Known: keep%2 == 0, Lease: DefaultLease}
		r := k.op(&a).Apply(&s, now)
		if q := r.Allotment; q.Held < 0 || q.Keep < 0 || q.Keep > q.Held || q.Again < 0 || q.Again > time.Minute || q.Held > max(keep, 0)+max(want, 0) || want > 0 && q.Held > max(keep, 2) && q.Held > keep {
			t.Errorf("%+v has the answer %+v", a, q)
		}
		b, _ := s.MarshalBinary()
		if err := new(Stored).UnmarshalBinary(b); err != nil {
			t.Errorf("%v after %+v: %+v", err, a, s.Holders)
		}
	})
}
