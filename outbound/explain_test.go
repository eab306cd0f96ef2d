package outbound

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// explained is what a bucket explains about a call.
func explained(t *testing.T, b *Bucket, c Cost) Explanation {
	t.Helper()
	e, err := b.Explain(t.Context(), c)
	must(t, err)
	return e
}

// A call that is alone leaves after the wait that Explain returns, to the nanosecond. While no call is booked, the limit
// that it names is the first of those that make the call wait longest.
func TestExplain_WaitIsExact(t *testing.T) {
	berlin, _ := time.LoadLocation("Europe/Berlin")
	all := []Limit{
		PerSecond(3), Per(20, time.Minute).Of(1, "tokens"), Per(5, time.Second).Burst(3).Of(0, "burst"), Window(4, 2*time.Second), FixedWindow(5, 3*time.Second),
		Window(30, time.Minute).Of(2, "rows"), Daily(60, berlin), {Capacity: 7, LeakRate: 0.3}, {Capacity: 1e9, LeakRate: 1e8, Name: "wide"},
	}
	causes, named := map[string]int{}, 0
	for round := range 60 {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, uint64(round)))
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			limits := slices.Clone(all[:1+r.IntN(3)])
			var cost Cost
			for _, l := range limits {
				cost[l.Unit] = 1
			}
			b := Must(NewBucket("key", limits...))
			for range 40 {
				switch r.IntN(8) {
				case 0:
					_ = b.Hold(t.Context(), time.Duration(r.ExpFloat64()*float64(time.Second)))
				case 1:
					if p, err := b.Acquire(t.Context(), cost); err == nil {
						p.Refused(0)
						p.Done()
					}
				case 2, 3:
					time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second)))
				}
				e := explained(t, b, cost)
				causes[e.Because]++
				long := BookRequest{Costs: []Cost{cost}, Wait: 100 * time.Hour, Horizon: time.Hour}
				var got time.Duration
				err := b.Book(t.Context(), &long)
				if full := (*ThrottledError)(nil); errors.As(err, &full) { // nothing is booked beyond a window that begins with a call
					got = full.RetryAfter
				} else if err != nil {
					t.Fatalf("%v: %v", limits, err)
				} else {
					got = time.Until(long.Clock.Due(long.Tickets[0]))
				}
				fatalIf(t, max(0, got) != e.Wait,
					"round %d, %v: leaves after %v, and Explain returned %v:\n%v", round, limits, got, e.Wait, e)
				if e.Booked == 0 {
					longest, most := "", time.Duration(0)
					for _, l := range e.States {
						if l.Wait > most {
							longest, most = l.Label(), l.Wait
						}
					}
					if named++; e.Limit != longest {
						t.Fatalf("round %d, %v: %q is named, and %q makes it wait longest:\n%v", round, limits, e.Limit, longest, e)
					}
				}
				if r.IntN(3) == 0 && err == nil { // else it stays booked
					p := long.Tickets[0].Permit()
					p.Settle(Cost{})
					p.Done()
				}
			}
		})
	}
	for _, c := range []string{"", "limit", "hold", "booked"} {
		errorIf(t, causes[c] < 20, "%q %d times", c, causes[c])
	}
	errorIf(t, named < 100, "only %d calls without a reservation before them", named)
}

// Explain changes nothing, however often it looks, at a slow clock too.
func TestExplain_ChangesNothing(t *testing.T) {
	var states [2]string
	for i := range states {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Minute)
			b := Must(NewBucket("key", Window(5, time.Minute), Limit{Capacity: 3, LeakRate: 0.7}, Daily(10, time.UTC)))
			p := admit(t, b, 1)
			p.Refused(time.Second)
			p.Done()
			for range 1000 {
				time.Sleep(7777777 * time.Nanosecond)
				if i == 1 {
					explained(t, b, Cost{2})
				}
			}
			admit(t, b, 1)
			s := stateOf(t, b)
			errorIf(t, i == 1 && len(s.Parts[0].Slots) < 2, "no slots")
			text, err := json.Marshal(s)
			must(t, err)
			states[i] = string(text)
		})
	}
	errorIf(t, states[0] != states[1], "%s\n\n%s", states[0], states[1])
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("key", PerSecond(10)))
		explained(t, b, Cost{1})
		errorIf(t, b.core.Slow(), "Explain has made a slowPath")
	})
}

// The text of an explanation has the wait, its cause, and each limit.
func TestExplanation_String(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second, hour := Limit{Capacity: 10, LeakRate: 10, Name: "per second"}, Limit{Capacity: 50, LeakRate: 0.0139, Name: "per hour"}
		b := Must(NewBucket("github", second, hour))
		says := func(b *Bucket, c Cost, want string) {
			t.Helper()
			equal(t, explained(t, b, c).String(), want, "the explanation of %v", c)
		}
		says(b, Cost{1}, `"github": would leave now
  limit "per second": level 0 of 10, capacity for 1 now
  limit "per hour": level 0 of 50, capacity for 1 now`)
		for range 5 {
			admit(t, b, 10)
			time.Sleep(time.Second)
		}
		time.Sleep(60 * time.Second)
		says(b, Cost{2}, `"github": would wait 1m19s for limit "per hour"
  limit "per second": level 0 of 10, capacity for 2 now
  limit "per hour": level 49.0965 of 50, capacity for 2 in 1m19s`)
		says(b, Cost{11}, `"github": can never be admitted: outbound: cost 11 for "github" exceeds limit per second: 10 burst, 10/s: split the call
  limit "per second": level 0 of 10, never capacity for 11
  limit "per hour": level 49.0965 of 50, capacity for 11 in 12m6s`)
		p := admit(t, b, 0.5)
		p.Answered(Answer{Kind: AnswerRefused, Wait: 90 * time.Second, Reason: "rate"})
		says(b, Cost{1}, `"github": would wait 1m30s for the hold to end
  held for 1m30s (rate)
  the API has refused the latest call
  limit "per second": level 9.5 of 10, capacity for 1 in 50ms
  limit "per hour": level 48.3455 of 50, capacity for 1 now`)
		_ = b.Resume(t.Context())

		b = Must(NewBucket("shop", PerSecond(1), InFlight(1)))
		admit(t, b, 1)
		says(b, Cost{1}, `"shop": would wait until a call in progress ends, for limit "1 in flight"
  limit "1 per 1s": 1 each 1.01s, capacity for 1 in 1.01s
  limit "1 in flight": 1 of 1 calls in progress`)
	})
}

// Explain names what makes a call wait, and the explanation says it in words.
func TestExplain_NamesTheCause(t *testing.T) {
	bubble(t, "Explain names what makes a call wait longest, and the first of equal limits", func(t *testing.T) {
		b := Must(NewBucket("key", Limit{Capacity: 2, LeakRate: 1, Name: "first"}, Limit{Capacity: 2, LeakRate: 1, Name: "second"}))
		is := func(c Cost, because string, limit string, wait time.Duration) {
			t.Helper()
			if e := explained(t, b, c); e.Because != because || e.Limit != limit || e.Wait != wait {
				t.Errorf("%v, want %v for %q, %v", e, because, limit, wait)
			}
		}
		is(Cost{2}, "", "", 0)
		admit(t, b, 2)
		is(Cost{2}, "limit", "first", 2*time.Second)
		time.Sleep(time.Second)
		_ = b.Hold(t.Context(), time.Second/4) // in which the second leaks
		is(Cost{2}, "limit", "first", 5*time.Second/4)
		is(Cost{1}, "hold", "", time.Second/4)
		_ = b.Hold(t.Context(), time.Second)
		is(Cost{2}, "hold", "first", 2*time.Second)
		is(Cost{Free}, "hold", "", time.Second)
	})
	bubble(t, "Explain of a shared bucket is one request, and returns the same as that of a bucket in memory", func(t *testing.T) {
		store := new(FakeStore)
		limits := []Limit{PerSecond(2), Window(3, time.Minute), Daily(5, time.UTC)}
		shared, local := Must(NewSharedBucket(store, "key", limits...)), Must(NewBucket("key", limits...))
		for i := range 12 {
			for _, b := range []*Bucket{shared, local} {
				_, _ = b.Acquire(t.Context(), Cost{1})
			}
			before := store.Requests.Load()
			is, want := explained(t, shared, Cost{1}), explained(t, local, Cost{1})
			equal(t, store.Requests.Load()-before, 1, "requests")
			errorIf(t, is.Wait != want.Wait || is.Because != want.Because || is.Limit != want.Limit,
				"step %d:\n%v\nwant\n%v", i, is, want)
			time.Sleep(17 * time.Second)
		}
	})
	bubble(t, "While calls are booked behind a window, they wait for the window, and not for the limit that their reservations fill", func(t *testing.T) {
		b := Must(NewBucket("key", PerSecond(10), Window(20, 10*time.Minute)))
		for range 20 {
			mustAcquire(t, b)
			time.Sleep(200 * time.Millisecond)
		}
		for range 3 {
			reserve(t, b, 1)
			e := explained(t, b, Cost{1})
			errorIf(t, e.Limit != "20 in any 10m" || e.Wait < 9*time.Minute, "%v", e)
		}
		// Of two leaky limits the slow one.
		b = Must(NewBucket("key", PerSecond(10), PerMinute(6)))
		reserve(t, b, 4)
		e := explained(t, b, Cost{1})
		errorIf(t, e.Limit != "6 per 1m", "%v", e)
		// A limit that a call has filled above its capacity is its own cause, and is not booked.
		b = Must(NewBucket("key", Limit{Capacity: 10, LeakRate: 10}, Limit{Capacity: 2, LeakRate: 2, Name: "slow"}))
		mustAcquire(t, b).Settle(Cost{40})
		if e := explained(t, b, Cost{1}); e.Limit != "slow" || e.Because != "limit" || e.Booked != 0 || strings.Contains(e.String(), "booked") {
			t.Errorf("booked for %v: %v", e.Booked, e)
		}
	})
	// While the bucket is slowed, they are further apart.
	bubble(t, "An explanation says how far apart a limit spaces calls, where its level says nothing", func(t *testing.T) {
		ends := func(b *Bucket, lines ...string) {
			t.Helper()
			got, want := explained(t, b, Cost{1}).String(), "\n  "+strings.Join(lines, "\n  ")
			errorIf(t, !strings.HasSuffix(got, want), "got\n%s\nwant at its end%s", got, want)
		}
		b := Must(NewBucket("api", PerSecond(5), Limit{Capacity: 1, LeakRate: 4, Name: "own"}, PerMinute(60).Burst(2), Per(90, time.Minute).Of(1, "rows")))
		for range 3 { // one leaves, and two are booked
			reserve(t, b, 1)
		}
		ends(b, `limit "5 per 1s": 1 each 202ms, capacity for 1 in 1.219s`,
			`limit "own": 1 each 250ms, capacity for 1 in 1.267s`,
			`limit "60 per 1m": more than 2 of 2, capacity for 1 in 2.034s`,
			`limit "rows": 1 each 667ms`)
		equal(t, (Explanation{Because: "never"}).String(), `"": can never be admitted`, "the text")
		b = Must(NewBucket("api", Limit{Capacity: 1, LeakRate: 9, Name: "slow"}))
		mustAcquire(t, b).Done() // a success before
		time.Sleep(time.Second)
		p := mustAcquire(t, b)
		p.Answered(Answer{Kind: AnswerRefused, Wait: time.Second, Reason: "rate"})
		p.Done()
		time.Sleep(time.Second)
		mustAcquire(t, b).Done()
		ends(b, `limit "slow": 1 each 123ms, capacity for 1 in 123ms`)
		errorIf(t, states(t, b)[0].Speed >= 0.95, "it is not slowed")
	})
	t.Run("An explanation can be logged and written as JSON, whatever the key", func(t *testing.T) {
		b := Must(NewBucket("key\n<img>", Window(2, time.Hour)))
		e := explained(t, b, Cost{3})
		errorIf(t, e.Because != "never" || !errors.Is(e.Err, ErrTooLarge) || e.Wait >= 0 || e.States[0].Wait >= 0, "%+v", e)
		text, err := json.Marshal(e)
		var back struct {
			Text, Because, Err string
			Cost               Cost
			States             []struct {
				Level float64
				Limit Limit
			}
		}
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back.Text != e.String() || back.Because != "never" || !strings.Contains(back.Err, "exceeds limit") || back.Cost != (Cost{3}) || back.States[0].Limit.Capacity != 2 {
			t.Errorf("%v: %s", err, text)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("slow", "call", e)
		if line := log.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "call.because=never") || !strings.Contains(line, `limit=""`) || !strings.Contains(line, "call.text="+strconv.Quote(e.String())) {
			t.Error(line)
		}
		errorIs(t, errOf(b.Explain(t.Context(), Cost{-1})), ErrInvalid, "the error")
	})
}
