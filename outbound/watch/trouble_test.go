package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Calls that fail are trouble: of a closed queue, of a store, of whatever.
func TestCallsThatFailAreTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			err   error
			some  bool // others are admitted
			want  Severity
			words string
		}{
			{queue.ErrClosed, false, Stopped, "3 calls failed in the last minute, the latest because the queue is closed."},
			{&outbound.StoreError{Op: "book", Err: store.ErrUnavailable}, false, Stopped, "the latest because the store failed."},
			{&outbound.StoreError{Op: "book", Err: store.ErrUnavailable}, true, Busy, "the latest because the store failed."},
			{&outbound.CostError{Err: outbound.ErrTooLarge}, false, Busy, "the latest because a cost can never be admitted."},
			{errors.New("own"), false, Busy, "3 calls failed in the last minute."},
		} {
			var b Board
			fails := true
			l := b.Add("api", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
				if fails {
					return outbound.Permit{}, c.err
				}
				return outbound.Permit{}, nil
			}))
			for range 3 {
				_, _ = l.Acquire(bg, outbound.Cost{1})
			}
			if fails = false; c.some {
				_, _ = l.Acquire(bg, outbound.Cost{1})
			}
			s := only(t, &b)
			if s.Severity != c.want || len(s.Trouble) != 1 || !strings.HasSuffix(s.Trouble[0], c.words) || s.Minute.Seconds[59].Failed != 3 {
				t.Errorf("%v: %d %q", c.err, s.Severity, s.Trouble)
			}
			time.Sleep(time.Minute)
			if s := only(t, &b); s.Severity != Calm || len(s.Trouble) != 0 {
				t.Errorf("a minute later: %d %q", s.Severity, s.Trouble)
			}
		}
	})
}

// What a limit shows of its window is never above what it lets go.
func TestUsedIsNeverMoreThanTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		l := b.Add("api", queue.New(bucket(t, outbound.PerMinute(1).Of(0, "minute"), outbound.PerSecond(3).Of(0, "second")), queue.Config{}))
		time.Sleep(500 * time.Millisecond)
		most := 0.0
		for range 5 {
			if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
			for range 9 {
				for _, is := range only(t, &b).Limits {
					if is.Used > is.Of {
						t.Errorf("%s: %v of %v", is.Name, is.Used, is.Of)
					}
					most = max(most, is.Used/is.Of)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		if most != 1 {
			t.Errorf("at most %v of a limit that is used up", most)
		}
	})
}

// Much of the same is one event, so that it pushes no other out.
func TestAStormOfChangesIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		b.Add("api", bucket(t, outbound.PerSecond(1)))
		b.Add("other", bucket(t, outbound.PerSecond(1)))
		s, other := b.shown[0], b.shown[1]
		b.note(s, 1, &outbound.Event{Kind: outbound.EventHeld, Hold: time.Hour})
		for i := range 300 {
			time.Sleep(time.Second)
			b.note(s, 1, &outbound.Event{Kind: outbound.EventLate, Calls: 2, Late: time.Duration(i+1) * time.Millisecond})
			if i == 100 {
				b.note(other, 1, &outbound.Event{Kind: outbound.EventLimits})
			}
		}
		e := b.Snapshot(bg, Query{}).Events
		if len(e) != 3 || e[0].Times != 300 || e[0].Name != "api" || !strings.Contains(e[0].Words, "300 ms") || e[1].Times != 1 || e[2].Kind != "held" || time.Since(e[0].At) != 0 {
			t.Errorf("%+v", e)
		}
		for i := range 2 * mostEvents { // holds stay apart
			b.note(s, 1, &outbound.Event{Kind: []string{outbound.EventHeld, outbound.EventReleased}[i%2], Hold: time.Hour})
		}
		if e := b.Snapshot(bg, Query{}).Events; len(e) != mostEvents || fmt.Sprint(e[0].Times) != "1" {
			t.Errorf("%d events", len(e))
		}
	})
}

// spoiled is a store that finds the bytes of a key corrupt the first time.
type spoiled struct {
	stored store.Stored
	read   bool
}

func (s *spoiled) Update(_ context.Context, _ string, op *store.Op) (store.Reply, error) {
	if !s.read {
		s.read, s.stored.State.Speed = true, -1
	}
	return op.Apply(&s.stored, time.Duration(time.Now().UnixNano())), nil
}

// A page shows that the data of a key was corrupt, and what to do, until a Resume.
func TestSnapshot_CorruptData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewSharedBucket(new(spoiled), "quota", outbound.Monthly(1_000, time.UTC)))
		var board Board
		l := board.Add("quota", b)
		time.Sleep(time.Minute) // no call leaves in the first second of a month
		if _, err := l.Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Fatalf("a call by corrupt data: %v", err)
		}
		check := func(want bool) {
			t.Helper()
			e, err := b.Explain(bg, outbound.Cost{1})
			shown := strings.Join(board.Snapshot(bg, Query{}).Limiters[0].Trouble, " ")
			if err != nil || e.Corrupt != want || strings.Contains(e.String(), "corrupt") != want || strings.Contains(shown, "corrupt") != want {
				t.Errorf("want corrupt %v: %v, %v, %q", want, e, err, shown)
			}
		}
		check(true)
		if err := b.Resume(bg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // a Board looks once a second at most
		check(false)
		if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Error(err)
		}
	})
}
