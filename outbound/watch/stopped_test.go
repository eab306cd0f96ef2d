package watch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// standstills are the reasons why no call leaves, each on a Board of its own. The first words on the page say so.
var standstills = []struct {
	name     string
	severity Severity
	words    string
	make     func(t *testing.T, b *Board) outbound.Limiter // returns one whose calls then wait
}{
	{"used-up day", Stopped, "No call leaves for 1 h 2 min: 20 per day UTC is used up. 3 calls wait in the queue", func(t *testing.T, b *Board) outbound.Limiter {
		time.Sleep(9 * time.Hour)
		l := b.Add("geocoder", queue.New(bucket(t, outbound.Daily(20, time.UTC), outbound.PerSecond(5)), queue.Config{}))
		for range 20 {
			take(t, l)
			time.Sleep((13*time.Hour + 58*time.Minute) / 20)
		}
		return l
	}},
	{"hold", Stopped, "No call leaves for 12 s: the API has refused calls that came too fast. 3 calls of this process wait in the queue", func(t *testing.T, b *Board) outbound.Limiter {
		l := b.Add("payments", queue.New(shared(t, newStore(), "k", outbound.PerSecond(100)), queue.Config{}))
		p := take(t, l)
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: 14 * time.Second, Reason: "rate"})
		p.Done()
		return l
	}},
	{"slow-down", Slowed, "Calls leave at 84.3 % of the configured rate, because the API has refused some.", func(t *testing.T, b *Board) outbound.Limiter {
		l := b.Add("search", queue.New(bucket(t, outbound.PerSecond(1)), queue.Config{}))
		for range 2 {
			p := take(t, l)
			p.Done()
			p = take(t, l)
			p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Second, Reason: "rate"})
			p.Done()
			time.Sleep(12 * time.Second)
		}
		return l
	}},
	{"store away", Stopped, "Its store does not answer (connection refused); what is shown is 16 s old.", func(t *testing.T, b *Board) outbound.Limiter {
		s := newStore()
		l := b.Add("mail", shared(t, s, "k", outbound.Window(5_000, time.Hour)))
		take(t, l)
		only(t, b)
		s.fail(errors.New("connection refused"))
		time.Sleep(14 * time.Second)
		return l
	}},
	{"full InFlight", Stopped, "No call leaves until a call ends: 3 of 3 are in flight, the oldest for 1 min 37 s. 3 calls wait", func(t *testing.T, b *Board) outbound.Limiter {
		l := b.Add("reports", queue.New(bucket(t, outbound.PerSecond(10), outbound.InFlight(3)), queue.Config{}))
		for range 3 {
			keep(t, take(t, l))
			time.Sleep(5 * time.Second)
		}
		time.Sleep(80 * time.Second)
		return l
	}},
	{"behind another queue", Busy, "3 calls wait in the queue, the first for 2 s, behind 41 calls of the queue in front.", func(t *testing.T, b *Board) outbound.Limiter {
		api := bucket(t, outbound.PerSecond(2))
		users := queue.New(api, queue.Config{})
		t.Cleanup(wait(users, 45))
		return b.Add("batch", queue.New(api, queue.Config{Behind: users}))
	}},
	{"room kept for others", Busy, "No call of this limiter leaves for 40 min: 40 of 100 in any 1h are kept free for other calls. 3 calls wait", func(t *testing.T, b *Board) outbound.Limiter {
		l := b.Add("backfill", queue.New(bucket(t, outbound.Window(100, time.Hour)), queue.Config{Headroom: 0.4}))
		for range 60 {
			take(t, l)
		}
		time.Sleep(20*time.Minute - 2*time.Second)
		return l
	}},
	{"calls without an answer", Busy, "12 calls got no answer in the last minute: their deadline came 200 ms after they left.", func(t *testing.T, b *Board) outbound.Limiter {
		l := b.Add("llm", queue.New(bucket(t, outbound.Limit{Capacity: 30, LeakRate: 0.5}), queue.Config{}))
		for range 12 {
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			p := must(l.Acquire(ctx, outbound.Cost{1}))
			time.Sleep(time.Second)
			p.Done()
			cancel()
		}
		return nil
	}},
	{"a large call", Stopped, "No call of average cost leaves for 59 min 58 s: it takes 40, and 20 of 100 in any 1h are left.", func(t *testing.T, b *Board) outbound.Limiter {
		l := b.Add("tokens", bucket(t, outbound.Window(100, time.Hour)))
		take(t, l, 40)
		take(t, l, 40)
		time.Sleep(2 * time.Second)
		return nil
	}},
	{"a long call among short ones", Busy, "No call leaves until a call ends: 3 of 3 are in flight (2 in this process, 1 in another), the oldest of this process for 1 min 32 s.", func(t *testing.T, b *Board) outbound.Limiter {
		s := newStore()
		l := b.Add("reports", shared(t, s, "k", outbound.InFlight(3)))
		keep(t, take(t, l))
		time.Sleep(90 * time.Second)
		keep(t, take(t, l))
		keep(t, take(t, shared(t, s, "k", outbound.InFlight(3))))
		time.Sleep(2 * time.Second)
		return nil
	}},
}

// keep keeps a permit until the test ends, so that its call counts as in flight.
func keep(t *testing.T, p outbound.Permit) { t.Cleanup(func() { p.Done() }) }

// stoppedBy returns what a Board shows.
func stoppedBy(t *testing.T, i int) (s Snapshot) {
	synctest.Test(t, func(t *testing.T) {
		var board Board
		if l := standstills[i].make(t, &board); l != nil {
			t.Cleanup(wait(l, 3))
			time.Sleep(2 * time.Second)
		}
		s = board.Snapshot(bg, Query{})
	})
	return s
}

// A limiter of which no call leaves says why in its first words, and is as red as that is bad.
func TestSnapshot_SaysWhyNothingLeaves(t *testing.T) {
	for i := range standstills {
		t.Run(standstills[i].name, func(t *testing.T) {
			l := stoppedBy(t, i).Limiters[0]
			if text := strings.Join(l.Trouble, " "); !strings.HasPrefix(text, standstills[i].words) || l.Severity != standstills[i].severity {
				t.Errorf("%d %q\n want %d %q", l.Severity, text, standstills[i].severity, standstills[i].words)
			}
			waits := strings.HasPrefix(standstills[i].words, "No call leaves until a call ends")
			errorIf(t, waits != (l.Explain.Because == "in flight"), "%v", l.Explain)
		})
	}
}

// Each kind of limit is shown as what it is.
func TestSnapshot_KindsOfLimits(t *testing.T) {
	for _, c := range []struct {
		limit           outbound.Limit
		inFlight, quota bool
	}{
		{outbound.InFlight(3), true, false}, {outbound.InFlight(3).Adaptive(), true, false}, {outbound.InFlight(3).Lease(time.Minute).Of(1, "named"), true, false},
		{outbound.Window(1, time.Hour).Of(2, "named"), false, true}, {outbound.FixedWindow(10, time.Minute), false, true}, {outbound.Daily(1, time.UTC), false, true},
		{outbound.Monthly(5, time.UTC).From(3).Of(0, " in flight"), false, true}, {outbound.PerHour(1), false, false}, {outbound.Limit{Capacity: 40, LeakRate: 2}, false, false},
	} {
		if inFlight, quota := isInFlight(c.limit), isQuota(c.limit); inFlight != c.inFlight || quota != c.quota {
			t.Errorf("%v: in flight %t, quota %t", c.limit, inFlight, quota)
		}
	}
}
