package outbound

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// leavings are ways out of the cell that leave more behind than a level.
var leavings = map[string]func(b *Bucket, p *Permit) error{
	"Settle for less":    func(_ *Bucket, p *Permit) error { p.Settle(Cost{1}); return nil },
	"Settle for nothing": func(_ *Bucket, p *Permit) error { p.Settle(Cost{}); return nil },
	"Settle for more":    func(_ *Bucket, p *Permit) error { p.Settle(Cost{20}); return nil },
	"a permit's Hold":    func(_ *Bucket, p *Permit) error { p.Hold(time.Second); return nil },
	"Refused":            func(_ *Bucket, p *Permit) error { p.Refused(time.Second); return nil },
	"Refused after a success": func(b *Bucket, p *Permit) error {
		first := *p
		first.Done()
		p.Refused(0)
		return nil
	},
	"AnswerRemaining": func(_ *Bucket, p *Permit) error {
		p.Answered(Answer{Kind: AnswerRemaining, Wait: time.Minute})
		return nil
	},
	"Hold":   func(b *Bucket, _ *Permit) error { return b.Hold(ctx, time.Second) },
	"Resume": func(b *Bucket, _ *Permit) error { return b.Resume(ctx) },
	"Fillup": func(b *Bucket, _ *Permit) error { _, err := b.Fillup(ctx, Cost{3}); return err },
	"places": func(b *Bucket, _ *Permit) error {
		return b.Book(ctx, &BookRequest{Costs: []Cost{{9}, {9}}, Wait: time.Hour, Horizon: time.Hour})
	},
}

// forLong is longer than any memory of a refusal, and any slow-down.
const forLong = 3 * time.Hour

func TestCell_EmptyBucketReturnsToIt(t *testing.T) {
	for name, leave := range leavings {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
				for range 3 { // it goes back as often as it is left
					p := admit(t, b, 5)
					if err := leave(b, &p); err != nil {
						t.Fatal(err)
					}
					time.Sleep(forLong)
					p = admit(t, b, 1) // this one brings it back
					p.Done()
					if b.word.Load() == busy {
						t.Fatal("its state is not back in the cell")
					}
					if n := testing.AllocsPerRun(8, func() {
						p := admit(t, b, 1)
						p.Done()
					}); n > 0 {
						t.Errorf("%v allocations a call", n)
					}
					if _, err := b.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
						t.Errorf("beyond the capacity: %v", err)
					}
					if s, err := b.State(ctx); err != nil || s.Level != 10 || s.Speed != 1 || s.HeldFor != 0 {
						t.Errorf("%+v, %v", s, err)
					}
					if b.word.Load() == busy {
						t.Error("a look has taken the state away")
					}
					time.Sleep(forLong)
				}
			})
		})
	}
}

func TestCell_BucketThatRemembersStaysOut(t *testing.T) {
	for name, leave := range leavings {
		if name == "Fillup" || name == "places" { // which leave nothing but a level
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
				p := admit(t, b, 5)
				if err := leave(b, &p); err != nil {
					t.Fatal(err)
				}
				for !b.Idle() {
					if b.word.Load() != busy {
						t.Fatalf("%+v is in the cell", b.slow.Load().local.stored.State)
					}
					time.Sleep(time.Second / 7)
				}
			})
		})
	}
}

func TestCell_OldCallReturnsNothing(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
			old := admit(t, b, 5)
			p := admit(t, b, 5)
			if refused {
				p.Refused(time.Second)
			} else {
				p.Settle(Cost{4})
			}
			time.Sleep(forLong)
			admit(t, b, 6)
			admit(t, b, 4)
			if refused {
				old.Settle(Cost{})
			} else {
				old.Settle(Cost{1})
			}
			if s, _ := b.State(ctx); s.Level != 10 {
				t.Errorf("level %v, want 10: the call's own units have leaked long since", s.Level)
			}
			late := admitted(t, 10)
			late.Settle(Cost{13})
			var r reply
			if err := late.core.peek(ctx, "state", &step{}, &r); err != nil || r.states()[0].Level != 3 {
				t.Errorf("%+v, %v, want a level of the 3 that it has cost beyond its cost", r.states(), err)
			}
		})
	}
}

// admitted is a call of a life that is over, of a bucket that is empty.
func admitted(t *testing.T, n float64) Permit {
	b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
	old := admit(t, b, n)
	if err := b.Hold(ctx, time.Second); err != nil {
		t.Fatal(err)
	}
	time.Sleep(forLong)
	if _, err := b.State(ctx); err != nil || b.word.Load() == busy || b.slow.Load().local.born == b.born {
		t.Fatalf("no new life: %v", err)
	}
	return old
}

func TestRefused_LongCallCountsUnlessAnotherWasRefused(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
			long := admit(t, b, 1)
			p := admit(t, b, 1)
			if refused {
				p.Refused(time.Second)
			} else {
				p.Settle(Cost{0.5})
			}
			time.Sleep(forLong)
			admit(t, b, 1)
			if b.word.Load() == busy {
				t.Fatal("its state is not back in the cell")
			}
			long.Refused(0)
			s, err := b.State(ctx)
			if err != nil || (s.HeldFor == time.Second) == refused {
				t.Errorf("refused before %v: held for %v, %v", refused, s.HeldFor, err)
			}
		})
	}
}

func TestCell_OldSuccessDoesNotCount(t *testing.T) {
	for _, young := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
			p, refused := admit(t, b, 1), admit(t, b, 1)
			refused.Refused(0)
			time.Sleep(forLong)
			q := admit(t, b, 1) // which brings the cell back
			q.Failed()
			if q = admit(t, b, 1); young {
				q.Done()
			} else {
				p.Done()
			}
			q = admit(t, b, 1)
			q.Refused(0)
			// A refusal after a success slows the clock; before any it says nothing.
			if s, err := b.State(ctx); err != nil || (s.Speed < 1) != young {
				t.Errorf("a young success %v: speed %v, %v", young, s.Speed, err)
			}
		})
	}
}

// After a Resume no call counts as on its way, so a hold after it lets the leak run on,
// however lately a call went.
func TestHold_AfterResumeCountsNoReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
		p := admit(t, b, 5)
		p.Settle(Cost{}) // so that it is empty
		if err := b.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := b.State(ctx); err != nil || b.word.Load() == busy {
			t.Fatalf("its state is not back in the cell, %v", err)
		}
		if err := b.Hold(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
		if s, err := b.State(ctx); err != nil || s.Level != 9 {
			t.Errorf("level %v (%v), want 9", s.Level, err)
		}
	})
}

// A program that looks at a million keys, as for metrics, does not pay for each with a
// slowPath.
func TestState_ChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := PerSecond(100).Burst(7).Of(1, "some")
		cost := Cost{1: 3}
		looked, left := Must(NewBucket("k", limit)), Must(NewBucket("k", limit))
		slow := Must(NewBucket("k", limit))
		slow.slowPath()
		same := func() {
			t.Helper()
			for _, b := range []*Bucket{looked, slow} {
				able, err := b.AbleToAccept(ctx, Cost{1: 5})
				if err != nil || able != (states(t, b)[0].Remaining >= 5) || b.SetLimits(ctx, limit) != nil {
					t.Errorf("able %v, %v", able, err)
				}
			}
			if a, b := states(t, looked)[0], states(t, slow)[0]; a != b {
				t.Errorf("%+v, with a slowPath %+v", a, b)
			}
			if looked.Idle() != slow.Idle() || looked.word.Load() != left.word.Load() || looked.seen.Load() != left.seen.Load() || looked.slow.Load() != nil {
				t.Error("a look has changed the bucket")
			}
		}
		for range 3 {
			for _, b := range []*Bucket{looked, left, slow} {
				if _, err := b.Acquire(ctx, cost); err != nil && !errors.Is(err, ErrThrottled) {
					t.Fatal(err)
				}
			}
			same()
			time.Sleep(13 * time.Millisecond)
			same()
		}
		time.Sleep(time.Minute)
		same()
	})
}
