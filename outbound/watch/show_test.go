package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// question asks something of a board, in virtual time.
func question(t *testing.T, words string, f func(t *testing.T, b *Board)) {
	bubble(t, words, func(t *testing.T) { f(t, new(Board)) })
}

// bubble runs a scenario in virtual time. Its words say what holds.
func bubble(t *testing.T, words string, scenario func(t *testing.T)) {
	t.Run(words, func(t *testing.T) { synctest.Test(t, scenario) })
}

// A board answers what an operator asks.
func TestBoard_AnswersQuestions(t *testing.T) {
	question(t, "how full is it now", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 0.001, Name: "burst"}, outbound.PerMinute(30).Of(0, "minute").Burst(30)))
		paced := b.Add("paced", queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{}))
		for range 7 {
			take(t, l)
			take(t, paced)
		}
		is := called(t, b, "api").Limits
		errorIf(t, math.Abs(is[0].Level-7) > 0.01 || is[0].Capacity != 10 || is[1].Of != 0, "%+v", is)
		// A level of 1 of 1 says nothing: the calls in the window do.
		window := called(t, b, "paced").Limits[0]
		errorIf(t, window.Used < 5.5 || window.Used > 7 || window.Of != 10 || window.Window != time.Second, "%+v", window)
		exports(t, b, `limit_capacity{limiter="api",limit="burst"} 10`)
	})
	question(t, "how many calls wait, and for how long", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.PerMinute(1)), queue.Config{}))
		take(t, l)
		stop := wait(l, 3)
		time.Sleep(20 * time.Second)
		is := called(t, b, "api")
		errorIf(t, is.Queue.Waiting != 3 || is.Queue.Oldest != 20*time.Second || is.Queue.NextIn.Round(time.Second) != 40*time.Second || is.Severity != Busy || is.Trouble[0] != "3 calls wait in the queue, the first for 20 s.", "%+v", is)
		exports(t, b, `calls_waiting{limiter="api"} 3`, `calls_oldest_wait_seconds{limiter="api"} 20`)
		time.Sleep(41 * time.Second)
		stop()
		is = called(t, b, "api")
		errorIf(t, is.Queue.Waiting != 0 || is.Minute.P99 < 10*time.Second || is.Calls.Waits.Time < 59*time.Second, "%+v", is)
		exports(t, b, `call_wait_time_seconds_bucket{limiter="api",le="10"} 1`, `call_wait_time_seconds_bucket{limiter="api",le="300"} 2`)
	})
	question(t, "which share was used in the last minute and hour", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.PerMinute(60), outbound.Window(100, time.Hour).Of(0, "hour"), outbound.Window(1e6, time.Hour).Of(1, "tokens")), queue.Config{}))
		for range 40 {
			take(t, l, 1, 250)
		}
		is := called(t, b, "api")
		used, hour, tokens := is.Limits[0], is.Limits[1], is.Limits[2]
		errorIf(t, math.Abs(used.Used-40) > 1 || used.Of != 60 || hour.Level != 40 || hour.Capacity != 100 || tokens.Level != 10_000, "%+v", is.Limits)
		sum := uint64(0)
		for _, s := range is.Minute.Seconds {
			sum += s.Admitted
		}
		errorIf(t, sum != 40, "%d calls in the last minute", sum)
		exports(t, b, `units_total{limiter="api",unit="0"} 40`, `units_total{limiter="api",unit="1"} 10000`)
	})
	question(t, "what was refused or held, and why", func(t *testing.T, b *Board) {
		one := bucket(t, outbound.Limit{Capacity: 3, LeakRate: 0.001})
		l := b.Add("api", one)
		var log lines
		defer one.Observe(Log(log.logger().With("limiter", "api")))()
		p := take(t, l)
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: 10 * time.Minute, Reason: "quota"})
		_, err := l.Acquire(bg, outbound.Cost{1})
		fatalIf(t, !errors.Is(err, outbound.ErrThrottled), "%v", err)
		time.Sleep(time.Minute)
		is := called(t, b, "api")
		errorIf(t, is.Calls.ByReason["quota"] != 1 || is.Calls.Refused != 1 || is.HeldTime != time.Minute || is.Reason != "quota" || is.Severity != Stopped || !strings.Contains(is.Trouble[0], "the API reports that the quota is used up"),
			"%+v", is)
		errorIf(t, is.HeldFor < 9*time.Minute || is.HeldFor > 12*time.Minute || is.Explain.Because != "hold",
			"held for %v: %v", is.HeldFor, is.Explain)
		exports(t, b, `refusals_total{limiter="api",reason="quota"} 1`, `hold_time_seconds_total{limiter="api"} 60`, `calls_total{limiter="api",result="refused",error_type=""} 1`)
		all := log.all()
		errorIf(t, !strings.Contains(all[0], `level=WARN msg="no call leaves" limiter=api`) || !strings.Contains(all[0], "reason=quota"), "%q", all)
		e := b.Snapshot(bg, Query{}).Events
		errorIf(t, len(e) == 0 || e[len(e)-1].Kind != "held" || !strings.Contains(e[len(e)-1].Words, "reason quota"), "%+v", e)
	})
	question(t, "how fast is it", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 10}))
		exports(t, b, `speed{limiter="api"} 1`)
		for range 2 {
			p := take(t, l)
			p.Done()
			p.Refused(time.Second)
			time.Sleep(2 * time.Second)
		}
		is := called(t, b, "api")
		errorIf(t, is.Speed <= 0 || is.Speed >= 1 || is.Severity != Slowed || !strings.Contains(is.Trouble[0], " % of the configured rate") || !strings.Contains(is.Explain.String(), "slowed to"), "%+v", is)
	})
	question(t, "what does each worker get", func(t *testing.T, b *Board) {
		s := newStore()
		other := new(Board) // of another process
		one, two := b.Add("api", shared(t, s, "k", outbound.Window(10, time.Hour))), other.Add("api", shared(t, s, "k", outbound.Window(10, time.Hour)))
		for i := range 10 {
			take(t, map[bool]outbound.Limiter{true: one, false: two}[i < 7])
		}
		exports(t, b, `calls_total{limiter="api",result="admitted",error_type=""} 7`)
		exports(t, other, `calls_total{limiter="api",result="admitted",error_type=""} 3`)
		is := called(t, other, "api")
		errorIf(t, !is.Shared || is.Limits[0].Level != 10 || is.Calls.Admitted != 3, "%+v", is)
	})
	question(t, "which limit binds", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Window(10, time.Second).Of(0, "per second"), outbound.Window(3, time.Hour).Of(0, "per hour")))
		for range 3 {
			take(t, l)
		}
		_, err := l.Acquire(bg, outbound.Cost{1})
		var full *outbound.ThrottledError
		errorIf(t, !errors.As(err, &full) || full.Limit != "per hour", "%v", err)
		is := called(t, b, "api")
		errorIf(t, is.Explain.Limit != "per hour" || !strings.Contains(is.Explain.String(), `would wait 1h for limit "per hour"`),
			"%+v", is)
		exports(t, b, `calls_over_limit_total{limiter="api",limit="per hour"} 1`)
	})
	question(t, "what is a limit without a name called", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.PerHour(1)))
		take(t, l)
		_, _ = l.Acquire(bg, outbound.Cost{1})
		is := called(t, b, "api")
		errorIf(t, is.Limits[0].Name != "1 per 1h" || is.Explain.Limit != "1 per 1h", "%+v", is)
		exports(t, b, `calls_over_limit_total{limiter="api",limit="1 per 1h"} 1`)
		exports(t, b, `limit_level{limiter="api",limit="1 per 1h"} 1`)
	})
	question(t, "when is it empty", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 0.1}))
		for range 6 {
			take(t, l)
		}
		is := called(t, b, "api").Limits[0]
		errorIf(t, is.EmptyIn.Round(time.Second) != time.Minute, "%+v", is)
		line := b.Add("line", queue.New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1}), queue.Config{}))
		take(t, line)
		stop := wait(line, 5)
		e := called(t, b, "line").Explain
		errorIf(t, e.Ahead != 5 || e.Wait.Round(time.Second) != time.Minute || e.Booked <= 0 || e.Booked > time.Minute, "%v", e)
		stop()
	})
	question(t, "are calls answered in time", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{}))
		ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
		defer cancel()
		p, _ := l.Acquire(ctx, outbound.Cost{1})
		time.Sleep(time.Second)
		p.Done()
		const text = "1 call got no answer in the last minute: its deadline came 200 ms after it left."
		is := called(t, b, "api")
		errorIf(t, is.Severity != Busy || !slices.Contains(is.Trouble, text), "%q", is.Trouble)
	})
	question(t, "how much does batch work keep free for others", func(t *testing.T, b *Board) {
		batch := b.Add("batch", queue.New(bucket(t, outbound.Window(10, time.Hour)), queue.Config{Headroom: 0.4}))
		take(t, batch, 6)
		stop := wait(batch, 2)
		is, text := called(t, b, "batch"), "level 6 of 10, 4 kept free for others"
		if page := jsonOf(t, b.Snapshot(bg, Query{})); is.Severity != Busy || is.Explain.Because != "limit" || !strings.Contains(is.Explain.String(), text) || !strings.Contains(page, text) {
			t.Errorf("%v, %v\n%s", is.Severity, is.Explain, page)
		}
		stop()
	})
	question(t, "is the store unavailable, since when, and what do calls do meanwhile", func(t *testing.T, b *Board) {
		s := newStore()
		f := &fallback.Store{Store: s, Share: 0.5}
		check(t, b.AddStore("quotas", f))
		l := b.Add("api", shared(t, f, "k", outbound.PerSecond(10)))
		direct := b.Add("direct", shared(t, s, "k", outbound.PerSecond(10)))
		take(t, l)
		exports(t, b, `store_unavailable{store="quotas"} 0`)
		s.fail(store.ErrUnavailable)
		time.Sleep(time.Second)
		_, _ = l.Acquire(bg, outbound.Cost{1})
		_, _ = direct.Acquire(bg, outbound.Cost{1})
		time.Sleep(30 * time.Second)
		take(t, l)
		is := b.Snapshot(bg, Query{}).Stores[0]
		errorIf(t, !is.Unavailable || is.UnavailableFor < 30*time.Second || is.Fallback.Keys != 1 || is.Fallback.Outages != 1 || !strings.Contains(is.Err, "unavailable") || len(is.Trouble) != 2 || !strings.Contains(is.Trouble[1], "1 key is on shares"),
			"%+v", is)
		if is := called(t, b, "direct"); is.Severity != Stopped || !strings.HasPrefix(is.Trouble[0], "Its store does not answer (store") || is.Calls.ByError["store"] != 1 {
			t.Errorf("%+v", is)
		}
		if is := called(t, b, "api"); is.Severity != Slowed || is.Err != "" || !is.Explain.Share || !strings.HasPrefix(is.Trouble[0], "Its store does not answer: this process has its share") || !strings.Contains(is.Explain.String(), "its share of each limit") {
			t.Errorf("%+v, %v", is, is.Explain)
		}
		exports(t, b, `store_unavailable{store="quotas"} 1`, `calls_total{limiter="direct",result="failed",error_type="store"} 1`)
		s.fail(nil) // calls go to it again some time later
		for i := 0; i < 100 && f.State().Unavailable; i++ {
			_, _ = l.Acquire(bg, outbound.Cost{1})
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute) // each limiter is looked at again
		is = b.Snapshot(bg, Query{}).Stores[0]
		errorIf(t, is.Unavailable || is.Err != "" || is.Trouble != nil || is.Fallback.Outages != 1, "%+v", is)
		if is := called(t, b, "direct"); is.Err != "" || called(t, b, "api").Explain.Share {
			t.Errorf("%+v, %v", is, called(t, b, "api").Explain)
		}
		exports(t, b, `store_unavailable{store="quotas"} 0`)
	})
	question(t, "is this process late, and how late do calls depart", func(t *testing.T, b *Board) {
		s := newStore()
		one := shared(t, s, "k", outbound.PerSecond(10))
		var log lines
		defer one.Observe(Log(log.logger()))()
		l := b.Add("api", queue.New(one, queue.Config{}))
		stop := wait(l, 200)
		time.Sleep(3 * time.Second)
		is := called(t, b, "api")
		errorIf(t, is.Queue.Late != 0, "%d reservations are lost before", is.Queue.Late)
		s.late.Store(int64(500 * time.Millisecond)) // its replies come after the reservations that they book
		time.Sleep(5 * time.Second)
		is, e := called(t, b, "api"), b.Snapshot(bg, Query{}).Events
		errorIf(t, is.Queue.Late == 0 || len(e) == 0 || e[0].Kind != "late" || !strings.Contains(e[0].Words, "this process was late"),
			"%d reservations are lost, %+v", is.Queue.Late, e)
		exports(t, b, `queue_late_total{limiter="api"} `+strconv.FormatUint(is.Queue.Late, 10))
		all := log.all()
		errorIf(t, len(all) == 0 || !strings.Contains(all[0], `level=WARN msg="reservations were lost, because this process was late"`) || !strings.Contains(all[0], "late="), "%q", all)
		stop()
		time.Sleep(time.Minute) // for requests that are under way
	})
}

// What a board shows, and what calls may do meanwhile.
func TestSnapshot_ShowsTrouble(t *testing.T) {
	question(t, "The limiters in trouble come first, in an order that their words explain", func(t *testing.T, b *Board) {
		limit := outbound.Limit{Capacity: 10, LeakRate: 0.01}
		b.Add("calm", bucket(t, limit))
		full := b.Add("full", bucket(t, limit))
		stop := wait(b.Add("waits", queue.New(bucket(t, outbound.PerMinute(1)), queue.Config{})), 3)
		defer stop()
		slow := b.Add("slowed", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 10}))
		held := bucket(t, limit)
		b.Add("held", held)
		take(t, full, 9)
		for range 2 {
			p := take(t, slow)
			p.Done()
			p.Refused(time.Second)
			time.Sleep(2 * time.Second)
		}
		hold(t, held, time.Hour)
		time.Sleep(3 * time.Second)
		s := b.Snapshot(bg, Query{})
		var names []string
		for _, l := range s.Limiters {
			names = append(names, l.Name)
		}
		errorIf(t, fmt.Sprint(names) != "[held slowed waits full calm]", "%v", names)
		for i, want := range []string{"No call leaves for 59 min 57 s: an operator", "Calls leave at ", "2 calls wait in the queue"} {
			text := strings.Join(s.Limiters[i].Trouble, " ")
			errorIf(t, !strings.HasPrefix(text, want), "%s: %s", names[i], text)
		}
		errorIf(t, len(s.Events) == 0 || s.Events[0].Name != "held" || !strings.Contains(s.Events[0].Words, "1 h"),
			"%+v", s.Events)
	})
	bubble(t, "Calls that fail are trouble, and the words name the cause", func(t *testing.T) {
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
			errorIf(t, s.Severity != c.want || len(s.Trouble) != 1 || !strings.HasSuffix(s.Trouble[0], c.words) || s.Minute.Seconds[59].Failed != 3,
				"%v: %d %q", c.err, s.Severity, s.Trouble)
			time.Sleep(time.Minute)
			s = only(t, &b)
			errorIf(t, s.Severity != Calm || len(s.Trouble) != 0, "a minute later: %d %q", s.Severity, s.Trouble)
		}
	})
	question(t, "What a limit shows of its window is never above what it admits", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.PerMinute(1).Of(0, "minute"), outbound.PerSecond(3).Of(0, "second")), queue.Config{}))
		time.Sleep(500 * time.Millisecond)
		most := 0.0
		for range 5 {
			take(t, l)
			for range 9 {
				for _, is := range only(t, b).Limits {
					errorIf(t, is.Used > is.Of, "%s: %v of %v", is.Name, is.Used, is.Of)
					most = max(most, is.Used/is.Of)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		errorIf(t, most != 1, "at most %v of a limit that is used up", most)
	})
	bubble(t, "A board shows that the data of a key was corrupt, and what to do, until a Resume", func(t *testing.T) {
		b := outbound.Must(outbound.NewSharedBucket(new(spoiled), "quota", outbound.Monthly(1_000, time.UTC)))
		var board Board
		l := board.Add("quota", b)
		time.Sleep(time.Minute) // no call leaves in the first second of a month
		_, err := l.Acquire(bg, outbound.Cost{1})
		fatalIf(t, !errors.Is(err, outbound.ErrThrottled), "a call by corrupt data: %v", err)
		corrupt := func(want bool) {
			t.Helper()
			e, err := b.Explain(bg, outbound.Cost{1})
			shown := strings.Join(only(t, &board).Trouble, " ")
			errorIf(t, err != nil || e.Corrupt != want || strings.Contains(e.String(), "corrupt") != want || strings.Contains(shown, "corrupt") != want,
				"want corrupt %v: %v, %v, %q", want, e, err, shown)
		}
		corrupt(true)
		check(t, b.Resume(bg))
		time.Sleep(2 * time.Second) // a Board looks once a second at most
		corrupt(false)
		take(t, l)
	})
	question(t, "OnCall may use the board", func(t *testing.T, b *Board) {
		one := bucket(t, outbound.Limit{Capacity: 5, LeakRate: 1})
		l := b.Add("one", one)
		calls := 0
		b.OnCall = func(ctx context.Context, c Call) {
			calls++
			b.Snapshot(ctx, Query{})
			_, _ = one.Explain(ctx, c.Cost)
			_ = one.Resume(ctx)
			b.Add("two", one)
		}
		take(t, l)
		errorIf(t, calls != 1, "%d calls", calls)
		synctest.Wait()
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

// Looks leave the heap as it was: from the first look on, no key that is looked at has become larger.
func TestSnapshot_LeavesTheHeapAsItWas(t *testing.T) {
	var b Board
	const keys = 3000 // whose ledgers would take 2.3 MB
	keyed := tenants(keys, outbound.Limit{Capacity: 10, LeakRate: 1e-3})
	of := AddKeyed(&b, "tenants", keyed, nil)
	for i := range keys {
		take(t, of(strconv.Itoa(i)))
	}
	b.Add("queue", queue.New(bucket(t, outbound.PerSecond(1), outbound.InFlight(5)), queue.Config{}))
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	look := func(n int) {
		for range n {
			b.Snapshot(bg, Query{Rows: 5})
			metricsOf(&b)
		}
	}
	before := heap()
	if look(300); !raced {
		look(3300)
	}
	after := heap()
	errorIf(t, after > before+1<<20, "%d bytes before, %d after", before, after)
	runtime.KeepAlive(&b) // otherwise what has grown is garbage by then
	runtime.KeepAlive(keyed)
}
