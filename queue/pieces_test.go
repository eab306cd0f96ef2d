package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// longLine returns a state with calls of random costs and deadlines, of which the first two have places.
func longLine(t *testing.T, r *rand.Rand, shared bool, limits ...outbound.Limit) *state {
	b := outbound.Must(outbound.NewBucket("k", limits...))
	if shared {
		b = outbound.Must(outbound.NewSharedBucket(leak.NewMemory(), "k", limits...))
	}
	if err := b.Hold(t.Context(), time.Duration(r.IntN(10))*time.Second+1); err != nil {
		t.Fatal(err)
	}
	k := outbound.Booking{Costs: []outbound.Cost{{1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
	if err := b.Book(t.Context(), &k); err != nil || len(k.Tickets) != 2 {
		t.Fatal(err)
	}
	s := &state{key: "k", shared: shared, config: Config{MaxLen: 1000}, clock: k.Clock, unchecked: true}
	for i := range 150 {
		w := &waiter{cost: outbound.Cost{1}}
		if i >= 2 {
			w.cost[0] += float64(r.IntN(3))
		}
		if i < 2 || r.IntN(3) > 0 {
			w.deadline = time.Now().Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
		}
		s.line.add(w)
	}
	for _, ticket := range k.Tickets {
		s.line.book(ticket)
	}
	return s
}

// sorts are limits of each sort.
var sorts = [][]outbound.Limit{{{Capacity: 3, LeakRate: 20}}, {outbound.Window(30, 4*time.Second)}, {outbound.Limit{Capacity: 3, LeakRate: 20}, outbound.FixedWindow(70, 5*time.Second)}}

// A long line is checked in pieces. They find whom one look at all of it finds.
func TestPiecesOfALineFindWhomTheWholeFinds(t *testing.T) {
	found := 0
	for seed := range uint64(12) {
		for _, limits := range sorts {
			synctest.Test(t, func(t *testing.T) {
				now := time.Now()
				find := func(most int) (all []refusal) {
					s := longLine(t, rand.New(rand.NewPCG(seed, 1)), seed%2 == 1, limits...)
					for c := s.newCheck(true); c.next != nil; {
						part := s.hopeless(c, most, now)
						for _, f := range part { // as the queue does in between
							s.line.remove(f.w)
						}
						all = append(all, part...)
					}
					return all
				}
				whole := find(1000)
				found += len(whole)
				for _, most := range []int{1, 7, 50} { // the first has places in two pieces
					all := find(most)
					if len(all) != len(whole) {
						t.Fatalf("seed %d, %v: pieces of %d find %d, and the whole %d", seed, limits, most, len(all), len(whole))
					}
					for i := range all {
						var got, want *outbound.ThrottledError
						if all[i].w.seq != whole[i].w.seq || !errors.As(all[i].err, &got) || !errors.As(whole[i].err, &want) || got.RetryAfter != want.RetryAfter {
							t.Fatalf("seed %d, %v, pieces of %d: the %dth is %v, want %v", seed, limits, most, i, all[i], whole[i])
						}
					}
				}
			})
		}
	}
	if found < 300 {
		t.Errorf("only %d found", found)
	}
}

// Newcomers foretell a long line in pieces. Until it is whole the forecast is a lower bound, and then it is exact, with
// the newcomers behind the others.
func TestAForecastInPiecesIsALowerBoundUntilItIsWhole(t *testing.T) {
	for seed := range uint64(6) {
		for _, limits := range sorts {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				come := func(s *state) {
					w := &waiter{cost: outbound.Cost{1}, deadline: began.Add(time.Hour)}
					if err := s.admit(w, time.Now()); err != nil {
						t.Fatal(err)
					}
					s.line.add(w)
				}
				when := func(s *state) time.Time {
					at, err := s.look().When(&outbound.Cost{1})
					if err != nil {
						t.Fatal(err)
					}
					return at
				}
				whole := longLine(t, rand.New(rand.NewPCG(seed, 2)), seed%2 == 1, limits...)
				whole.credit = whole.line.n
				come(whole)
				come(whole)
				want := when(whole)
				s := longLine(t, rand.New(rand.NewPCG(seed, 2)), seed%2 == 1, limits...)
				s.credit = s.line.n
				InPieces(t, 40) // of 148 calls without a place, and two that come
				come(s)
				come(s)
				if at := when(s); s.uncounted == nil || !at.Before(want) {
					t.Errorf("seed %d, %v: %v, and the whole tells %v", seed, limits, at, want)
				}
				if at := when(s); s.uncounted != nil || !at.Equal(want) {
					t.Errorf("seed %d, %v: %v, and the whole tells %v", seed, limits, at, want)
				}
			})
		}
	}
}

// While calls cancel between two pieces of a check, it refuses whom it should by those who wait at that moment: nobody
// who would have made it, and in the end all others.
func TestCancelsBetweenPiecesMakeNobodyRefusedWhoWouldHaveGone(t *testing.T) {
	InPieces(t, 4)
	refused, cancelled := 0, 0
	for seed := uint64(0); seed < 20 || cancelled < 100 && seed < 2000; seed++ {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			const apart = 10 * time.Millisecond
			s := longLine(t, r, false, outbound.Limit{Capacity: 1, LeakRate: float64(time.Second / apart)})
			first := s.clock.Due(s.line.tickets[0])
			var all []*waiter
			for w := s.line.first; w != nil; w = w.next {
				w.cost = outbound.Cost{1}
				if w.deadline = w.deadline.Add(time.Millisecond / 2); w.deadline.Before(time.Now()) { // it had none
					w.deadline = time.Now().Add(time.Hour)
				}
				all = append(all, w)
			}
			q := &Queue{bucket: outbound.Must(outbound.NewBucket("k", outbound.PerSecond(1))), state: *s, pumping: true}
			// look compares those whom the check has refused since the last look with those whom it should have.
			out := make(map[*waiter]bool)
			look := func() {
				ahead := 0
				for _, w := range all {
					at := first.Add(time.Duration(ahead) * apart)
					switch late := at.After(w.deadline.Add(rounding)); {
					case out[w]:
					case w.gone:
						if out[w] = true; !late {
							t.Errorf("seed %d: call %d is refused, and would go %v before its deadline", seed, w.seq, w.deadline.Sub(at))
						}
						refused++
					case late && !q.unchecked && (q.checking == nil || w.seq < q.checking.next.seq && !q.checking.stale):
						t.Errorf("seed %d: call %d stays, and would go %v after its deadline", seed, w.seq, at.Sub(w.deadline))
					default:
						ahead++
					}
				}
			}
			q.mu.Lock()
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
					}
					q.mu.Lock()
					if look(); q.checking != nil && q.checking.next != nil {
						if w := all[2+r.IntN(len(all)-2)]; q.cancelLocked(w) {
							out[w] = true
							cancelled++
						}
					}
					q.mu.Unlock()
					runtime.Gosched()
				}
			}()
			q.checkLocked()
			if q.unchecked && len(q.line.unused) == 0 { // else more have cancelled than wait without a place
				t.Error("broken off")
			}
			look()
			q.mu.Unlock()
			close(stop)
			<-stopped
		})
	}
	t.Logf("%d refused, %d cancelled", refused, cancelled)
	if refused < 100 {
		t.Errorf("%d refused, %d cancelled", refused, cancelled)
	}
}

// What the bucket tells of between two pieces of a check may bring all calls nearer: the check waits for the trip.
func TestAChangeBetweenPiecesPutsTheCheckOff(t *testing.T) {
	InPieces(t, 4)
	for seed := range uint64(2000) {
		off := false
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 100})
			q := &Queue{bucket: b, state: *longLine(t, rand.New(rand.NewPCG(seed, 4)), false, outbound.Limit{Capacity: 1, LeakRate: 100}), pumping: true}
			q.mu.Lock()
			defer q.mu.Unlock()
			told := make(chan struct{})
			go func() {
				defer close(told)
				q.onChange()
			}()
			q.checkLocked()
			if off = q.unchecked; off && (!q.changed || q.checking != nil) {
				t.Error("put off without a change")
			}
			q.mu.Unlock()
			<-told
			q.mu.Lock()
		})
		if off {
			return
		}
	}
	t.Error("a change never comes in between")
}

// A bucket may tell of changes all the time, as while calls settle. The check is put off for each, and ends all the same.
func TestACheckEndsHoweverOftenItIsPutOff(t *testing.T) {
	InPieces(t, 4)
	for _, all := range []bool{true, false} { // false: of those that are untold, which here are all
		synctest.Test(t, func(t *testing.T) {
			s := longLine(t, rand.New(rand.NewPCG(1, 5)), false, outbound.Limit{Capacity: 1, LeakRate: 100})
			q := &Queue{bucket: bucket(t, outbound.Limit{Capacity: 1, LeakRate: 100}), state: *s, pumping: true}
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.unchecked = all; !all {
				for w := q.line.first; w != nil; w = w.next {
					w.untold = true
					q.line.untold++
				}
			}
			for n := 1; ; n++ {
				q.changed = true // again after the trip for the change before
				if q.checkLocked(); !q.unchecked && q.line.untold == 0 {
					break
				}
				if n == 10 {
					t.Fatalf("%d checks of %d calls, and none has ended", n, q.line.n)
				}
			}
			if c := q.newCheck(true); q.stats.Refused == 0 || len(q.hopeless(c, 1000, time.Now())) > 0 {
				t.Errorf("%d refused, and not all", q.stats.Refused)
			}
		})
	}
}

// Where costs differ, a call that cancels leaves a place that fits no other. Until it has gone back the
// forecast counts it for all: the check waits for the trip.
func TestACancelBetweenPiecesPutsTheCheckOffIfItsPlaceFitsNobody(t *testing.T) {
	InPieces(t, 4)
	for seed := range uint64(2000) {
		off := false
		synctest.Test(t, func(t *testing.T) {
			limit := outbound.Limit{Capacity: 3, LeakRate: 100}
			q := &Queue{bucket: bucket(t, limit), state: *longLine(t, rand.New(rand.NewPCG(seed, 6)), false, limit), pumping: true}
			q.mu.Lock()
			defer q.mu.Unlock()
			first := q.line.first
			first.deadline, first.next.deadline, first.next.next.cost[0] = time.Time{}, time.Time{}, 3
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				ended, end := context.WithCancel(bg)
				end()
				_ = q.leave(ended, first)
			}()
			q.checkLocked()
			if off = first.gone; off && (!q.unchecked || len(q.line.unused) == 0) {
				t.Errorf("seed %d: unchecked is %v, and %d places go back", seed, q.unchecked, len(q.line.unused))
			}
			q.mu.Unlock()
			<-gone
			q.mu.Lock()
		})
		if off {
			return
		}
	}
	t.Error("a cancel never comes in between")
}

// A hold may be so long that all calls miss their deadlines, those with places first. They are found in pieces, too.
func TestALineOfWhichAllAreTooLateIsCheckedInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := longLine(t, rand.New(rand.NewPCG(1, 7)), false, outbound.Limit{Capacity: 3, LeakRate: 100})
		for w := s.line.first; w != nil; w = w.next {
			w.deadline = time.Now()
		}
		for c, n := s.newCheck(true), s.line.n; c.next != nil; n -= 7 {
			all := s.hopeless(c, 7, time.Now())
			if len(all) != min(n, 7) {
				t.Fatalf("a piece of 7 finds %d of %d", len(all), n)
			}
			for _, r := range all {
				s.line.remove(r.w)
			}
		}
	})
}
