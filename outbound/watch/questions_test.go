package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	contract "github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// question asks something of a board, in virtual time.
func question(t *testing.T, words string, f func(t *testing.T, b *Board)) {
	t.Run(words, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, new(Board)) })
	})
}

// called returns the row of a name.
func called(t *testing.T, b *Board, name string) *Limiter {
	t.Helper()
	s := b.Snapshot(bg, Query{})
	for i := range s.Limiters {
		if s.Limiters[i].Name == name && s.Limiters[i].Label == "" {
			return &s.Limiters[i]
		}
	}
	t.Fatalf("no row of %s", name)
	return nil
}

// tells checks that the metrics have these lines.
func tells(t *testing.T, b *Board, lines ...string) {
	t.Helper()
	text := metricsOf(b)
	for _, line := range lines {
		if !strings.Contains(text, "\ndripfeed_"+line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
}

// go1 has one call go, and returns its permit.
func go1(t *testing.T, l outbound.Limiter) outbound.Permit {
	t.Helper()
	p, err := l.Acquire(bg, outbound.Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// wait has n calls wait until stop.
func wait(l outbound.Limiter, n int) (stop func()) {
	ctx, cancel := context.WithCancel(bg)
	for range n {
		go func() { _, _ = l.Acquire(ctx, outbound.Cost{1}) }()
	}
	synctest.Wait()
	return func() { cancel(); synctest.Wait() }
}

// What operators ask.
func TestQuestionsOfAnOperator(t *testing.T) {
	question(t, "how full is it now", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 0.001, Name: "burst"}, outbound.PerMinute(30).Of(0, "minute").Burst(30)))
		paced := b.Add("paced", queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{}))
		for range 7 {
			go1(t, l)
			go1(t, paced)
		}
		if is := called(t, b, "api").Limits[0]; math.Abs(is.Level-7) > 0.01 || is.Capacity != 10 {
			t.Errorf("%+v", is)
		}
		// A level of 1 of 1 says nothing: the calls in the window do.
		if is := called(t, b, "paced").Limits[0]; is.Used < 5.5 || is.Used > 7 || is.Of != 10 || is.Window != time.Second {
			t.Errorf("%+v", is)
		}
		tells(t, b, `limit_capacity{limiter="api",limit="burst"} 10`)
	})
	question(t, "who waits, and for how long", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.PerMinute(1)), queue.Config{}))
		go1(t, l)
		stop := wait(l, 3)
		time.Sleep(20 * time.Second)
		if is := called(t, b, "api"); is.Queue.Waiting != 3 || is.Queue.Oldest != 20*time.Second || is.Queue.NextIn.Round(time.Second) != 40*time.Second || is.Severity != Busy || is.Trouble[0] != "3 calls wait in the queue, the first for 20 s." {
			t.Errorf("%+v", is)
		}
		tells(t, b, `calls_waiting{limiter="api"} 3`, `calls_oldest_wait_seconds{limiter="api"} 20`)
		time.Sleep(41 * time.Second)
		stop()
		if is := called(t, b, "api"); is.Queue.Waiting != 0 || is.Minute.P99 < 10*time.Second || is.Calls.Waits.Time < 59*time.Second {
			t.Errorf("%+v", is)
		}
		tells(t, b, `call_wait_time_seconds_bucket{limiter="api",le="10"} 1`, `call_wait_time_seconds_bucket{limiter="api",le="300"} 2`)
	})
	question(t, "which share was used in the last minute and hour", func(t *testing.T, b *Board) {
		l := b.Add("api", queue.New(bucket(t, outbound.PerMinute(60), outbound.Window(100, time.Hour).Of(0, "hour"), outbound.Window(1e6, time.Hour).Of(1, "tokens")), queue.Config{}))
		for range 40 {
			if _, err := l.Acquire(bg, outbound.Cost{1, 250}); err != nil {
				t.Fatal(err)
			}
		}
		is := called(t, b, "api")
		if used, hour, tokens := is.Limits[0], is.Limits[1], is.Limits[2]; math.Abs(used.Used-40) > 1 || used.Of != 60 || hour.Level != 40 || hour.Capacity != 100 || tokens.Level != 10_000 {
			t.Errorf("%+v", is.Limits)
		}
		sum := uint64(0)
		for _, s := range is.Minute.Seconds {
			sum += s.Admitted
		}
		if sum != 40 {
			t.Errorf("%d calls in the last minute", sum)
		}
		tells(t, b, `units_total{limiter="api",unit="0"} 40`, `units_total{limiter="api",unit="1"} 10000`)
	})
	question(t, "what was refused or held, and why", func(t *testing.T, b *Board) {
		one := bucket(t, outbound.Limit{Capacity: 3, LeakRate: 0.001})
		l := b.Add("api", one)
		var log lines
		defer one.Observe(Log(log.logger().With("limiter", "api")))()
		p := go1(t, l)
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: 10 * time.Minute, Reason: "quota"})
		p.Done()
		if _, err := l.Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		is := called(t, b, "api")
		if is.Calls.ByReason["quota"] != 1 || is.Calls.Refused != 1 || is.HeldTime != time.Minute || is.Reason != "quota" || is.Severity != Stopped || !strings.Contains(is.Trouble[0], "the API reports that the quota is used up") {
			t.Errorf("%+v", is)
		}
		if is.HeldFor < 9*time.Minute || is.HeldFor > 12*time.Minute || is.Explain.Because != "hold" {
			t.Errorf("held for %v: %v", is.HeldFor, is.Explain)
		}
		tells(t, b, `refusals_total{limiter="api",reason="quota"} 1`, `hold_time_seconds_total{limiter="api"} 60`, `calls_total{limiter="api",result="refused",error_type=""} 1`)
		if all := log.all(); !strings.Contains(all[0], `level=WARN msg="no call leaves" limiter=api`) || !strings.Contains(all[0], "reason=quota") {
			t.Errorf("%q", all)
		}
		if e := b.Snapshot(bg, Query{}).Events; len(e) == 0 || e[len(e)-1].Kind != "held" || !strings.Contains(e[len(e)-1].Words, "reason quota") {
			t.Errorf("%+v", e)
		}
	})
	question(t, "how fast is it", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 10}))
		tells(t, b, `speed{limiter="api"} 1`)
		for range 2 {
			p := go1(t, l)
			p.Done()
			p.Refused(time.Second)
			time.Sleep(2 * time.Second)
		}
		if is := called(t, b, "api"); is.Speed <= 0 || is.Speed >= 1 || is.Severity != Slowed || !strings.Contains(is.Trouble[0], " % of the speed") || !strings.Contains(is.Explain.String(), "slowed to") {
			t.Errorf("%+v", is)
		}
	})
	question(t, "what does each worker get", func(t *testing.T, b *Board) {
		store := &watchedStore{Memory: contract.NewMemory()}
		other := new(Board) // of another process
		one, two := b.Add("api", shared(t, store, "k", outbound.Window(10, time.Hour))), other.Add("api", shared(t, store, "k", outbound.Window(10, time.Hour)))
		for i := range 10 {
			go1(t, map[bool]outbound.Limiter{true: one, false: two}[i < 7])
		}
		tells(t, b, `calls_total{limiter="api",result="admitted",error_type=""} 7`)
		tells(t, other, `calls_total{limiter="api",result="admitted",error_type=""} 3`)
		if is := called(t, other, "api"); !is.Shared || is.Limits[0].Level != 10 || is.Calls.Admitted != 3 {
			t.Errorf("%+v", is)
		}
	})
	question(t, "which limit binds", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Window(10, time.Second).Of(0, "per second"), outbound.Window(3, time.Hour).Of(0, "per hour")))
		for range 3 {
			go1(t, l)
		}
		_, err := l.Acquire(bg, outbound.Cost{1})
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || full.Limit != "per hour" {
			t.Error(err)
		}
		is := called(t, b, "api")
		if is.Explain.Limit != "per hour" || !strings.Contains(is.Explain.String(), `would wait 1h for limit "per hour"`) {
			t.Errorf("%+v", is)
		}
		tells(t, b, `calls_over_limit_total{limiter="api",limit="per hour"} 1`)
	})
	question(t, "what is a limit without a name called", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.PerHour(1)))
		go1(t, l)
		_, _ = l.Acquire(bg, outbound.Cost{1})
		if is := called(t, b, "api"); is.Limits[0].Name != "1 per 1h" || is.Explain.Limit != "1 per 1h" {
			t.Errorf("%+v", is)
		}
		tells(t, b, `calls_over_limit_total{limiter="api",limit="1 per 1h"} 1`)
		tells(t, b, `limit_level{limiter="api",limit="1 per 1h"} 1`)
	})
	question(t, "when is it empty", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 10, LeakRate: 0.1}))
		for range 6 {
			go1(t, l)
		}
		if is := called(t, b, "api").Limits[0]; is.EmptyIn.Round(time.Second) != time.Minute {
			t.Errorf("%+v", is)
		}
		line := b.Add("line", queue.New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1}), queue.Config{}))
		go1(t, line)
		stop := wait(line, 5)
		if is := called(t, b, "line"); is.Explain.Ahead != 5 || is.Explain.Wait.Round(time.Second) != time.Minute || is.Explain.Booked <= 0 || is.Explain.Booked > time.Minute {
			t.Errorf("%v", is.Explain)
		}
		stop()
	})
	question(t, "which of very many keys are hottest", func(t *testing.T, b *Board) {
		of := AddKeyed(b, "tenants", tenants(t, 3000, outbound.Limit{Capacity: 10, LeakRate: 1e-6}), func(key string) string { return "tenant " + key })
		for i := range 3000 {
			go1(t, of(strconv.Itoa(i)))
		}
		for range 8 {
			go1(t, of("77"))
		}
		for range 20 {
			_, _ = of("1234").Acquire(bg, outbound.Cost{5})
		}
		s := b.Snapshot(bg, Query{Rows: 3})
		var names []string
		for _, l := range s.Limiters {
			if l.Label != "" {
				names = append(names, l.Label)
			}
		}
		if got := fmt.Sprintf("%q", names); s.Hidden != 2998 || got != `["tenant 1234" "tenant 77"]` {
			t.Errorf("%s, and %d are hidden", got, s.Hidden)
		}
		if s := b.Snapshot(bg, Query{Search: "tenant 77", Rows: 100}); len(s.Limiters) != 11 || s.Limiters[0].Label != "tenant 77" || s.Limiters[0].Limits[0].Level < 8.9 {
			t.Errorf("%d are found, first %+v", len(s.Limiters), s.Limiters[0])
		}
		tells(t, b, `keys{limiter="tenants"} 3000`)
	})
	question(t, "is the store away, since when, and what do calls do meanwhile", func(t *testing.T, b *Board) {
		store := failing(nil)
		f := &fallback.Store{Store: store, Share: 0.5}
		if err := b.AddStore("quotas", f); err != nil {
			t.Fatal(err)
		}
		l := b.Add("api", shared(t, f, "k", outbound.PerSecond(10)))
		direct := b.Add("direct", shared(t, store, "k", outbound.PerSecond(10)))
		go1(t, l)
		tells(t, b, `store_unavailable{store="quotas"} 0`)
		store.fail(contract.ErrUnavailable)
		time.Sleep(time.Second)
		_, _ = l.Acquire(bg, outbound.Cost{1})
		_, _ = direct.Acquire(bg, outbound.Cost{1})
		time.Sleep(30 * time.Second)
		go1(t, l)
		s := b.Snapshot(bg, Query{}).Stores[0]
		if !s.Away || s.AwayFor < 30*time.Second || s.Fallback.Keys != 1 || s.Fallback.Outages != 1 || !strings.Contains(s.Err, "unavailable") || len(s.Trouble) != 2 {
			t.Errorf("%+v", s)
		}
		if is := called(t, b, "direct"); is.Severity != Stopped || !strings.HasPrefix(is.Trouble[0], "Its store does not answer (explain: ") || is.Calls.ByError["store"] != 1 {
			t.Errorf("%+v", is)
		}
		if is := called(t, b, "api"); is.Severity == Stopped || is.Err != "" { // its calls go on
			t.Errorf("%+v", is)
		}
		tells(t, b, `store_unavailable{store="quotas"} 1`, `calls_total{limiter="direct",result="failed",error_type="store"} 1`)
		store.fail(nil) // it is back, and calls go to it again some time later
		for i := 0; i < 100 && f.State().Away; i++ {
			_, _ = l.Acquire(bg, outbound.Cost{1})
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute) // each limiter is looked at again
		if s = b.Snapshot(bg, Query{}).Stores[0]; s.Away || s.Err != "" || s.Trouble != nil || s.Fallback.Outages != 1 {
			t.Errorf("%+v", s)
		}
		if is := called(t, b, "direct"); is.Err != "" {
			t.Errorf("%+v", is)
		}
		tells(t, b, `store_unavailable{store="quotas"} 0`)
	})
	question(t, "how slow is the store, and how many operations share a trip", func(t *testing.T, b *Board) {
		c := &counting{stats: contract.StoreStats{Answered: 30, Repeats: 3, Trips: contract.Times{
			Count: 12, Time: 240 * time.Millisecond, Within: [len(contract.TimeBounds)]uint64{1: 9, 6: 3}}}}
		if err := b.AddStore("redis", c); err != nil {
			t.Fatal(err)
		}
		if s := b.Snapshot(bg, Query{}).Stores[0]; s.Stats.Trips.Count != 12 || s.Stats.Answered != 30 || s.Stats.Repeats != 3 {
			t.Errorf("%+v", s)
		}
		tells(t, b, `store_requests_total{store="redis"} 12`, `store_operations_total{store="redis"} 30`, `store_repeats_total{store="redis"} 3`,
			`store_request_time_seconds_bucket{store="redis",le="0.005"} 9`, `store_request_time_seconds_sum{store="redis"} 0.24`)
	})
	question(t, "is this process late, and how late do calls depart", func(t *testing.T, b *Board) {
		store := &tardy{watchedStore: watchedStore{Memory: contract.NewMemory()}}
		one := shared(t, store, "k", outbound.PerSecond(10))
		var log lines
		defer one.Observe(Log(log.logger()))()
		l := b.Add("api", queue.New(one, queue.Config{}))
		stop := wait(l, 200)
		time.Sleep(3 * time.Second)
		if is := called(t, b, "api"); is.Queue.Late != 0 {
			t.Errorf("%d reservations are lost before", is.Queue.Late)
		}
		store.late.Store(int64(500 * time.Millisecond)) // its answers come after the places that they book
		time.Sleep(5 * time.Second)
		is, e := called(t, b, "api"), b.Snapshot(bg, Query{}).Events
		if is.Queue.Late == 0 || len(e) == 0 || e[0].Kind != "late" || !strings.Contains(e[0].Words, "this process was late") {
			t.Errorf("%d reservations are lost, %+v", is.Queue.Late, e)
		}
		tells(t, b, `queue_late_total{limiter="api"} `+strconv.FormatUint(is.Queue.Late, 10))
		if all := log.all(); len(all) == 0 || !strings.Contains(all[0], `level=WARN msg="reservations were lost, because this process was late"`) || !strings.Contains(all[0], "late=") {
			t.Errorf("%q", all)
		}
		stop()
		time.Sleep(time.Minute) // for requests that are under way
	})
}

// tardy is a store whose answers may be late.
type tardy struct {
	watchedStore
	late atomic.Int64
}

func (s *tardy) Update(ctx context.Context, key string, op *contract.Op) (contract.Reply, error) {
	r, err := s.watchedStore.Update(ctx, key, op)
	time.Sleep(time.Duration(s.late.Load()))
	return r, err
}
