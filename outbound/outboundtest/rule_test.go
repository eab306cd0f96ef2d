package outboundtest_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// callAPI makes a call without a network. A cost other than 1 is for rules made
// with Of("units", byHeader).
func callAPI(t *testing.T, api *API, cost float64) (status int, retryAfter string) {
	t.Helper()
	r := send(t, api, "GET", "/items", 0, cost)
	return r.status, r.Get("Retry-After")
}

func byHeader(r *http.Request) float64 {
	cost, err := strconv.ParseFloat(r.Header.Get("Cost"), 64)
	if err != nil {
		panic(err)
	}
	return cost
}

// rulesOf makes an API whose rules count units by header.
func rulesOf(rules ...Rule) *API {
	for i, rule := range rules {
		rules[i] = rule.Of("units", byHeader)
	}
	return &API{Rules: rules}
}

// Each rule admits at the first nanosecond that it may, and its Retry-After is exact.
func TestRule_ExactToTheNanosecond(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	type step struct {
		at         time.Duration // since midnight
		cost       float64
		retryAfter string // "": admitted; "never": refused without
	}
	tests := []struct {
		name  string
		rule  Rule
		steps []step
	}{
		{"capacity one", LeakyBucket(1, 10), []step{
			{0, 1, ""}, {0, 1, "1"}, {100*ms - 1, 1, "1"}, {100 * ms, 1, ""}, {200*ms - 1, 1, "1"}, {200 * ms, 1, ""}, {s, 1, ""}, {s, 1, "1"}}},
		{"one unit per second", LeakyBucket(1, 1), []step{
			{0, 1, ""}, {s - 1, 1, "1"}, {s, 1, ""}, {2*s - 1, 1, "1"}, {2 * s, 1, ""}}},
		{"a published bucket", LeakyBucket(3, 1.5), []step{
			{1 * s, 1, ""}, {1700 * ms, 2, ""}, {2 * s, 1, ""}, {2300 * ms, 2, "1"}, {6 * s, 3, ""}, {6 * s, .5, "1"}, {8*s - 1, 3, "1"}, {8 * s, 3, ""}}},
		{"fractions", LeakyBucket(1, 1), []step{
			{0, .25, ""}, {0, .75, ""}, {0, .25, "1"}, {250 * ms, .25, ""}, {250 * ms, 1, "1"}}},
		{"slow", LeakyBucket(2, 1.0/3600), []step{
			{0, 1, ""}, {0, 1, ""}, {0, 1, "3600"}, {s, 1, "3599"}, {s + 1, 1, "3599"}, {2*s - 1000, 1, "3599"}, {3600 * s, 1, ""}, {3600 * s, 2, "7200"}}},
		{"a fixed window", FixedWindow(2, s), []step{
			{900 * ms, 1, ""}, {950 * ms, 1, ""}, {950 * ms, 1, "1"}, {s - 1, 1, "1"}, {s, 1, ""}, {s, 1, ""}, {s, 1, "1"}, {5*s - 1, 2, ""}, {5 * s, 2, ""}}},
		{"a fixed window of a minute", FixedWindow(10, time.Minute), []step{
			{30 * s, 8, ""}, {31*s + 1, 3, "29"}, {32 * s, 2, ""}, {60*s - 1, 1, "1"}, {60 * s, 10, ""}, {60 * s, 1, "60"}}},
		{"a window from the first call on", FirstCallWindow(2, s), []step{
			{900 * ms, 1, ""}, {900 * ms, 0, ""}, {1800 * ms, 1, ""}, {1900*ms - 1, 1, "1"}, {1900 * ms, 3, "never"}, {2000 * ms, 0, ""}, {2500 * ms, 1, ""},
			{3400 * ms, 1, ""}, {3500*ms - 1, 1, "1"}, {3500 * ms, 2, ""}, {3500 * ms, 1, "1"}}},
		{"a calendar's hour", CalendarWindow(2, Hour, time.UTC), []step{
			{3599 * s, 1, ""}, {3599 * s, 1, ""}, {3599 * s, 1, "1"}, {3600*s - 1, 1, "1"}, {3600 * s, 2, ""}, {3600 * s, 1, "3600"}, {7200 * s, 3, "never"}, {7200 * s, 2, ""}}},
		{"a calendar's day", CalendarWindow(10, Day, time.UTC), []step{
			{30 * s, 8, ""}, {31*s + 1, 3, "86369"}, {32 * s, 2, ""}, {86400*s - 1, .5, "1"}, {86400 * s, 10, ""}, {86400 * s, 1, "86400"}}},
		{"a sliding log", SlidingLog(2, s), []step{
			{900 * ms, 1, ""}, {950 * ms, 1, ""}, {950 * ms, 1, "1"}, {s, 1, "1"}, {1900*ms - 1, 1, "1"}, {1900 * ms, 1, ""}, {1950*ms - 1, 1, "1"}, {1950 * ms, 1, ""}}},
		{"a sliding log of units", SlidingLog(10, 10*s), []step{
			{0, 4, ""}, {2 * s, 4, ""}, {4 * s, 3, "6"}, {4 * s, 7, "8"}, {5 * s, 2, ""}, {5 * s, 9, "10"}, {10*s - 1, 3, "1"}, {10 * s, 4, ""}}},
		{"a bucket of fractions that do not add up", LeakyBucket(.3, .1), []step{{0, .1, ""}, {0, .2, ""}, {0, 1e-9, "1"}}},
		{"a window of fractions that do not add up", FixedWindow(.3, s), []step{{0, .1, ""}, {0, .2, ""}, {0, 1e-9, "1"}}},
		{"a log of fractions that do not add up", SlidingLog(.3, s), []step{{0, .1, ""}, {0, .2, ""}, {0, 1e-9, "1"}}},
		{"more than ever fits", LeakyBucket(3, 1), []step{{0, 3.5, "never"}, {0, 3, ""}, {0, 3.5, "never"}}},
		{"more than a window", FixedWindow(3, s), []step{{0, 3.5, "never"}, {0, 3, ""}, {0, 3.5, "never"}}},
		{"more than a log", SlidingLog(3, s), []step{{0, 3.5, "never"}, {0, 3, ""}, {0, 3.5, "never"}}},
		{"a day of fractions that do not add up", CalendarWindow(.3, Day, time.UTC), []step{{0, .1, ""}, {0, .2, ""}, {0, 1e-9, "86400"}}},
		{"more than a day", CalendarWindow(3, Day, time.UTC), []step{{0, 3.5, "never"}, {0, 3, ""}, {0, 3.5, "never"}}},
		{"nothing passes a full day", CalendarWindow(3, Day, time.UTC), []step{{0, 3, ""}, {0, 0, ""}, {0, 1, "86400"}}},
		{"nothing passes a full bucket", LeakyBucket(3, 1), []step{{0, 3, ""}, {0, 0, ""}, {0, 1, "1"}}},
		{"nothing passes a full window", FixedWindow(3, s), []step{{0, 3, ""}, {0, 0, ""}, {0, 1, "1"}}},
		{"nothing passes a full log", SlidingLog(3, s), []step{{0, 3, ""}, {0, 0, ""}, {0, 1, "1"}}},
	}
	for _, test := range tests {
		bubble(t, test.name, func(t *testing.T) {
			midnight := time.Now()
			api := rulesOf(test.rule)
			for i, step := range test.steps {
				time.Sleep(time.Until(midnight.Add(step.at)))
				want, wantAfter := http.StatusTooManyRequests, step.retryAfter
				if wantAfter == "" {
					want = http.StatusOK
				}
				if wantAfter == "never" {
					wantAfter = ""
				}
				if status, after := callAPI(t, api, step.cost); status != want || after != wantAfter {
					t.Fatalf("step %d, %g units at %v: status %d, Retry-After %q, want %d, %q",
						i, step.cost, step.at, status, after, want, wantAfter)
				}
			}
		})
	}
}

// Each rule admits a call if and only if the sum of all earlier admissions leaves room.
func TestRule_AgreesWithAllEarlierCalls(t *testing.T) {
	const step = 250 * time.Millisecond
	tests := []struct {
		name string
		rule Rule
		fits func(admitted []point, candidate point) bool
	}{
		{"LeakyBucket", LeakyBucket(4, 2), func(admitted []point, candidate point) bool {
			return worstExcess(append(admitted, candidate), 4, 2, 0) <= 0
		}},
		{"FixedWindow", FixedWindow(4, 2*time.Second), func(admitted []point, candidate point) bool {
			sum := candidate.units
			for _, p := range admitted {
				if p.at/2e6 == candidate.at/2e6 {
					sum += p.units
				}
			}
			return sum <= 4
		}},
		{"SlidingLog", SlidingLog(4, 2*time.Second), func(admitted []point, candidate point) bool {
			sum := candidate.units
			for _, p := range admitted {
				if p.at > candidate.at-2e6 {
					sum += p.units
				}
			}
			return sum <= 4
		}},
	}
	for _, test := range tests {
		bubble(t, test.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 8))
			for range 200 {
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
				begin := time.Now()
				api := rulesOf(test.rule)
				var admitted []point
				refused := 0
				for range 25 {
					time.Sleep(step * time.Duration(random.IntN(4)))
					p := point{at: time.Since(begin).Microseconds(), units: 1 + random.Int64N(4)}
					want := http.StatusOK
					if !test.fits(admitted, p) {
						want, refused = http.StatusTooManyRequests, refused+1
					} else {
						admitted = append(admitted, p)
					}
					status, _ := callAPI(t, api, float64(p.units))
					fatalIf(t, status != want, "after %v: %v: status %d, want %d", admitted, p, status, want)
				}
				if r := api.Report(); r.Refused != refused || r.Admitted != len(admitted) || r.Arrivals != 25 {
					t.Fatalf("report %+v, want %d refused of 25", r, refused)
				}
			}
		})
	}
}

// Two APIs get the same random traffic. After a refusal the caller of one waits as told,
// and the API admits it. The caller of the other waits a second less, and the API does not.
func TestRetryAfter_IsTheFirstSecondThatAdmits(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	long := 0
	for i := range 400 {
		rules := []Rule{
			LeakyBucket(1+4*random.Float64(), 0.05+random.Float64()),
			FixedWindow(1+4*random.Float64(), time.Duration(1+random.Int64N(20e9))),
			SlidingLog(1+4*random.Float64(), time.Duration(1+random.Int64N(20e9))),
		}
		if i < 300 {
			rules = rules[i%3 : i%3+1]
		}
		seed := random.Uint64()
		traffic := func(t *testing.T, early time.Duration) (admitted bool, waited time.Duration) {
			traffic := rand.New(rand.NewPCG(seed, 0))
			api := rulesOf(append([]Rule(nil), rules...)...)
			for range 1000 {
				time.Sleep(time.Duration(traffic.Int64N(1e9)))
				cost := traffic.Float64()
				if _, after := callAPI(t, api, cost); after != "" {
					seconds, err := strconv.Atoi(after)
					fatalIf(t, err != nil || seconds < 1, "Retry-After %q", after)
					time.Sleep(time.Duration(seconds)*time.Second - early)
					status, _ := callAPI(t, api, cost)
					return status == http.StatusOK, time.Duration(seconds) * time.Second
				}
			}
			return true, 0 // never refused
		}
		synctest.Test(t, func(t *testing.T) {
			admitted, waited := traffic(t, 0)
			errorIf(t, !admitted, "%v: refused again after waiting for %v as told", rules, waited)
		})
		synctest.Test(t, func(t *testing.T) {
			admitted, waited := traffic(t, time.Second)
			errorIf(t, admitted && waited > 0,
				"%v: told to wait for %v, but admitted a second earlier", rules, waited)
			if waited > time.Second {
				long++
			}
		})
	}
	errorIf(t, long < 50, "only %d of 400 refusals were for more than a second", long)
}

// A rule counts calls, and nothing else.
func TestRule_Counts(t *testing.T) {
	bubble(t, "A call that one rule refuses counts in no other", func(t *testing.T) {
		time.Sleep(500 * time.Millisecond)
		api := &API{Rules: []Rule{
			LeakyBucket(2, 1),
			FixedWindow(100, time.Minute).Of("tokens", byHeader),
			SlidingLog(5, time.Hour),
		}}
		want := func(at time.Duration, tokens float64, status int, after string) {
			t.Helper()
			time.Sleep(at)
			if s, a := callAPI(t, api, tokens); s != status || a != after {
				t.Errorf("%g tokens: status %d, Retry-After %q, want %d, %q", tokens, s, a, status, after)
			}
		}
		for range 20 {
			want(0, 101, 429, "") // breaks only the tokens, for ever: neither the bucket nor the log may count it
		}
		want(0, 60, 200, "")
		for range 20 {
			want(0, 41, 429, "60") // breaks the tokens until the next minute
		}
		want(0, 10, 200, "")
		for range 20 {
			want(0, 1, 429, "1") // breaks the bucket: must not count tokens or calls of the hour
		}
		want(0, 31, 429, "60") // breaks two: the longer wait
		want(time.Second, 30, 200, "")
		want(time.Second, 0, 200, "") // no tokens left, and none wanted
		want(time.Second, 0, 200, "")
		want(0, 0, 429, "3597") // the log's wait is the longest
		r := api.Report()
		errorIf(t, r.Admitted != 5 || r.Arrivals != 5+62 || r.Refused != 62, "report %+v", r)
	})
	bubble(t, "A rule keeps no count: APIs that share it count separately", func(t *testing.T) {
		rule := SlidingLog(1, time.Second)
		for range 2 {
			api := &API{Rules: []Rule{rule}}
			status, _ := callAPI(t, api, 1)
			errorIf(t, status != http.StatusOK, "a rule carried its count from one API to another")
		}
	})
	bubble(t, "Numbers at the ends of float64 neither overflow nor block for ever", func(t *testing.T) {
		const century = 100 * 365 * 24 * time.Hour
		for _, rule := range []Rule{
			LeakyBucket(1, 1/century.Seconds()), LeakyBucket(1e300, 1e300), LeakyBucket(1e-300, 1e-300),
			LeakyBucket(1e12, 1e12/century.Seconds()), LeakyBucket(math.SmallestNonzeroFloat64, math.MaxFloat64),
			FirstCallWindow(1e300, century), FirstCallWindow(math.SmallestNonzeroFloat64, 1),
			FixedWindow(1e300, century), FixedWindow(math.SmallestNonzeroFloat64, 1),
			SlidingLog(1e300, century), SlidingLog(math.SmallestNonzeroFloat64, 1),
			CalendarWindow(1e300, Month, time.UTC), CalendarWindow(math.SmallestNonzeroFloat64, Hour, time.UTC),
		} {
			var limit float64
			api := &API{Rules: []Rule{rule.Of("units", func(*http.Request) float64 { return limit })}}
			for _, limit = range []float64{1e-300, 1, 1e12, 1e300, math.SmallestNonzeroFloat64} {
				for range 3 {
					status, after := callAPI(t, api, 1)
					if seconds, err := strconv.ParseFloat(after, 64); status == 429 && after != "" &&
						(err != nil || seconds < 1 || seconds > century.Seconds()) {
						t.Errorf("%v: %g units: Retry-After %s", rule, limit, after)
					}
				}
			}
			r := api.Report()
			errorIf(t, r.Refused == 0, "%v: nothing refused", rule)
		}
	})
}

// A rule is written in words.
func TestRule_String(t *testing.T) {
	for want, rule := range map[string]Rule{
		"40 calls in a bucket that leaks 2 per second":        LeakyBucket(40, 2),
		"10 calls in each 1s of the clock":                    FixedWindow(10, time.Second),
		"30000 tokens in any 1m0s":                            SlidingLog(30_000, time.Minute).Of("tokens", nil),
		"5 calls in 5s from the first call on":                FirstCallWindow(5, 5*time.Second),
		"9 calls in each hour of UTC":                         CalendarWindow(9, Hour, time.UTC),
		"9.5 EUR in each month of Europe/Berlin":              CalendarWindow(9.5, Month, zone(t, "Europe/Berlin")).Of("EUR", nil),
		"2 locks in progress":                                 InFlight(2).Of("locks", nil),
		"3 refusals in any 1s, and none for 1m0s after those": Penalty(3, time.Second, time.Minute, nil),
		"3 calls in progress":                                 InFlight(3),
		"no rule":                                             {},
	} {
		equal(t, rule.String(), want, "the words")
	}
}

// An invalid limit, rate, window, period or zone panics.
func TestRule_PanicsOnInvalidNumbers(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0} {
		wantPanic(t, "capacity", func() { LeakyBucket(bad, 1) })
		wantPanic(t, "leak rate", func() { LeakyBucket(1, bad) })
		wantPanic(t, "limit of a window", func() { FixedWindow(bad, time.Second) })
		wantPanic(t, "limit of a window", func() { FirstCallWindow(bad, time.Second) })
		wantPanic(t, "limit of a window", func() { SlidingLog(bad, time.Second) })
		wantPanic(t, "limit of a period", func() { CalendarWindow(bad, Day, time.UTC) })
	}
	for _, bad := range []Period{0, -1, Week + 1, math.MaxInt} {
		wantPanic(t, "must be Hour, Day, Month or Week", func() { CalendarWindow(1, bad, time.UTC) })
	}
	wantPanic(t, "a day in no zone", func() { CalendarWindow(1, Day, nil) })
	for _, bad := range []time.Duration{0, -1, math.MinInt64, math.MaxInt64} {
		wantPanic(t, "a window of", func() { FixedWindow(1, bad) })
		wantPanic(t, "a window of", func() { FirstCallWindow(1, bad) })
		wantPanic(t, "a window of", func() { Penalty(1, bad, time.Second, nil) })
		wantPanic(t, "a penalty of", func() { Penalty(1, time.Second, bad, nil) })
		wantPanic(t, "a window of", func() { SlidingLog(1, bad) })
	}
	wantPanic(t, "within 100 years", func() { LeakyBucket(1, 1e-10) })
	wantPanic(t, "within 100 years", func() { LeakyBucket(math.MaxFloat64, math.SmallestNonzeroFloat64) })
	wantPanic(t, "0 calls at once", func() { InFlight(0) })
	wantPanic(t, "-1 calls at once", func() { InFlight(-1) })
	wantPanic(t, "InFlight counts calls", func() { InFlight(1).Of("tokens", byHeader) })
	wantPanic(t, "InFlight counts calls", func() { InFlight(1).Settle(byHeader) })
	wantPanic(t, "Penalty counts calls", func() { Penalty(1, 1, 1, nil).Of("tokens", byHeader) })
	wantPanic(t, "Penalty counts calls", func() { Penalty(1, 1, 1, nil).Settle(byHeader) })
	wantPanic(t, "after 0 offences", func() { Penalty(0, 1, 1, nil) })
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// fatalIf reports a fault, and ends the test.
func fatalIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// equal reports the value that the words name if it is another than want.
func equal[T comparable](t testing.TB, got, want T, words string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), got, want)
	}
}

// errorIs reports an error that is not want, which may be nil.
func errorIs(t testing.TB, err, want error, words string, args ...any) {
	if !errors.Is(err, want) {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), err, want)
	}
}

// errOf returns the error of a call that returns a value as well.
func errOf[T any](_ T, err error) error { return err }

// bubble runs a subtest in fake time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// wantPanic expects a panic of this package that says the words.
func wantPanic(t *testing.T, words string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		text, _ := recover().(string)
		errorIf(t, !strings.HasPrefix(text, "outboundtest: ") || !strings.Contains(text, words),
			"got panic %q, want one that says %q", text, words)
	}()
	f()
}

func byPath(r *http.Request) string { return r.URL.Path[1:] }

// slowRules are rules of n units that free none during a test.
func slowRules(n float64) map[string]Rule {
	return map[string]Rule{
		"LeakyBucket": LeakyBucket(n, 0.001), "FixedWindow": FixedWindow(n, time.Hour),
		"FirstCallWindow": FirstCallWindow(n, time.Hour), "SlidingLog": SlidingLog(n, time.Hour),
	}
}

// With By each key has a count of its own.
func TestBy_EachKeyHasTheWholeLimit(t *testing.T) {
	for name, rule := range slowRules(2) {
		bubble(t, name, func(t *testing.T) {
			api := &API{Rules: []Rule{rule.By(byPath)}}
			for _, path := range []string{"/a", "/b"} {
				tell(t, api, "GET", path, 0).want(t, 200)
				tell(t, api, "GET", path, 0).want(t, 200)
				tell(t, api, "GET", path, 0).want(t, 429)
			}
			for range 5 {
				tell(t, api, "GET", "/", 0).want(t, 200)
			}
			api = &API{Rules: []Rule{rule.By(byPath).By(nil)}}
			tell(t, api, "GET", "/a", 0).want(t, 200)
			tell(t, api, "GET", "/b", 0).want(t, 200)
			tell(t, api, "GET", "/c", 0).want(t, 429)
		})
	}
}

// With By each key has its own calls in flight.
func TestBy_CountsCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &API{Rules: []Rule{InFlight(2).By(byPath)}, Latency: time.Second}
		var wg sync.WaitGroup
		for _, path := range []string{"/a", "/a", "/b", "/", "/", "/"} {
			wg.Go(func() { tell(t, api, "GET", path, 0).want(t, 200) })
		}
		synctest.Wait()
		wg.Go(func() { tell(t, api, "GET", "/a", 0).want(t, 429, "Retry-After") })
		wg.Go(func() { tell(t, api, "GET", "/b", 0).want(t, 200) })
		wg.Wait()
		for range 3 {
			tell(t, api, "GET", "/a", 0).want(t, 200)
		}
		r := api.Report()
		errorIf(t, r.InProgress != 0 || r.Peak != 7, "report %+v, want none in progress and a peak of 7", r)
	})
}

// A settled call counts as what it has used.
func TestSettle_CountsWhatWasUsed(t *testing.T) {
	used := func(n float64) func(*http.Request) float64 { return func(*http.Request) float64 { return n } }
	for name, rule := range slowRules(10) {
		for n, want := range map[float64]int{ // by the units that a call uses, of the 4 it asks for
			0: 1000, 1: 7, 4: 2, 25: 1,
		} {
			synctest.Test(t, func(t *testing.T) {
				asked := rule.Of("units", func(*http.Request) float64 { return 4 })
				api := &API{Rules: []Rule{asked.Settle(used(n))}}
				equal(t, admits(t, api), want, "%s: calls that use %g of 10 units", name, n)
				api = &API{Rules: []Rule{asked.Settle(used(n)).Settle(nil)}}
				equal(t, admits(t, api), 2, "%s: calls that use what they ask for", name)
			})
		}
	}
}

// A penalty follows on offences.
func TestPenalty(t *testing.T) {
	bubble(t, "A Penalty refuses all calls for its length after the last allowed offence in its window", func(t *testing.T) {
		api := &API{Rules: []Rule{SlidingLog(1, time.Second), Penalty(3, 10*time.Second, time.Minute, nil)}}
		call := func(at time.Duration, status int, after string) {
			t.Helper()
			time.Sleep(at)
			s, a := callAPI(t, api, 1)
			errorIf(t, s != status || a != after, "status %d, Retry-After %q, want %d, %q", s, a, status, after)
		}
		call(0, 200, "")
		call(0, 429, "1")
		call(0, 429, "1")
		call(10*time.Second, 200, "") // a nanosecond earlier the two would still count
		call(0, 429, "1")
		call(0, 429, "1")
		call(0, 429, "1") // the third
		call(0, 429, "60")
		call(30*time.Second, 429, "30") // refused, but no offence
		call(30*time.Second-1, 429, "1")
		call(1, 200, "")
		call(0, 429, "1")
		call(0, 429, "1")
		call(time.Second, 200, "") // the count has begun anew
	})
	bubble(t, "With By each key has its own offences, as the function judges answers", func(t *testing.T) {
		path := func(r *http.Request) string { return r.URL.Path }
		teapot := func(status int, h http.Header) bool { return status == http.StatusTeapot && h.Get("X-Bad") == "yes" }
		api := &API{Rules: []Rule{Penalty(2, time.Second, time.Minute, teapot).By(path)}}
		api.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Bad", "yes")
			w.WriteHeader(http.StatusTeapot)
		})
		tell(t, api, "GET", "/a", 0).want(t, 418)
		tell(t, api, "GET", "/b", 0).want(t, 418)
		tell(t, api, "GET", "/a", 0).want(t, 418)
		tell(t, api, "GET", "/a", 0).want(t, 429, "Retry-After: 60")
		tell(t, api, "GET", "/b", 0).want(t, 418)
		tell(t, api, "GET", "/b", 0).want(t, 429)
		tell(t, api, "GET", "/c", 0).want(t, 418)
	})
	bubble(t, "SetRules keeps the offences and the penalty", func(t *testing.T) {
		rules := []Rule{SlidingLog(1, time.Hour), Penalty(3, time.Minute, time.Hour, nil)}
		api := &API{Rules: rules}
		for range 3 { // one is answered, two are offences
			callAPI(t, api, 1)
		}
		api.SetRules(rules...)
		callAPI(t, api, 1)
		api.SetRules(rules...)
		time.Sleep(time.Hour - 1) // the log is empty a nanosecond later, and so is the penalty
		api.SetRules(rules[1])
		status, after := callAPI(t, api, 1)
		errorIf(t, status != 429 || after != "1", "status %d, Retry-After %q, want 429 with 1", status, after)
	})
	bubble(t, "Offences before a penalty do not count for the next one", func(t *testing.T) {
		api := &API{Rules: []Rule{Penalty(2, time.Hour, time.Minute, func(int, http.Header) bool { return true })}}
		for i := range 3 {
			tell(t, api, "GET", "/", 0).want(t, 200)
			tell(t, api, "GET", "/", 0).want(t, 200)
			if i < 2 {
				tell(t, api, "GET", "/", 0).want(t, 429, "Retry-After: 60")
				time.Sleep(time.Minute)
			}
		}
	})
	t.Run("A 103 before the answer is no offence", func(t *testing.T) {
		server := httptest.NewServer(&API{
			Rules: []Rule{Penalty(1, time.Hour, time.Hour, func(status int, _ http.Header) bool { return status < 200 })},
			Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusEarlyHints) // and then 200, without a word
			}),
		})
		defer server.Close()
		for range 2 {
			res, err := server.Client().Get(server.URL)
			must(t, err)
			res.Body.Close()
			errorIf(t, res.StatusCode != http.StatusOK, "status %d, want 200", res.StatusCode)
		}
	})
}
