package outboundtest_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
)

var noon = time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)

// point is a departure at a whole number of microseconds after noon.
type point struct{ at, units int64 }

func historyOf(points []point) *History {
	var h History
	for _, p := range points {
		h.Add(noon.Add(time.Duration(p.at)*time.Microsecond), float64(p.units))
	}
	return &h
}

// worstExcess tries every interval, in whole billionths of a unit: exact.
func worstExcess(points []point, capacity, leakRate, slack int64) int64 {
	worst := int64(math.MinInt64)
	for _, from := range points {
		for _, to := range points {
			if to.at < from.at {
				continue
			}
			var sum int64
			for _, p := range points {
				if from.at <= p.at && p.at <= to.at {
					sum += p.units
				}
			}
			worst = max(worst, (sum-capacity-slack)*1e9-leakRate*(to.at-from.at)*1e3)
		}
	}
	return worst
}

func checkAgainstEveryInterval(t *testing.T, points []point, capacity, leakRate, slack int64) {
	t.Helper()
	err := historyOf(points).Check(float64(capacity), float64(leakRate), float64(slack))
	worst := worstExcess(points, capacity, leakRate, slack)
	if worst <= 0 {
		fatalIf(t, err != nil, "%v: kept the law (%d, %d, %d), but: %v", points, capacity, leakRate, slack, err)
		return
	}
	excess, ok := errors.AsType[*Excess](err)
	if !ok {
		t.Fatalf("%v: broke the law (%d, %d, %d) by %d billionths, not found: %v", points, capacity, leakRate, slack, worst, err)
	}
	fatalIf(t, math.Abs(excess.Over*1e9-float64(worst)) > 1,
		"%v: over by %g, want %d billionths", points, excess.Over, worst)
	fatalIf(t, math.Abs(excess.Units-excess.Allowed-excess.Over) > 1e-9,
		"%v: %g units, %g allowed, but over by %g", points, excess.Units, excess.Allowed, excess.Over)
	var sum, n int64
	for _, p := range points {
		at := noon.Add(time.Duration(p.at) * time.Microsecond)
		if !at.Before(excess.Start) && !at.After(excess.End) {
			sum += p.units
			n++
		}
	}
	// Departures of the same instant as Start may be left out of the window only if they carry no units.
	if float64(sum) != excess.Units || n < int64(excess.Departures) {
		t.Fatalf("%v: the window [%v, %v] has %g units in %d departures, want %d in %d",
			points, excess.Start, excess.End, excess.Units, excess.Departures, sum, n)
	}
}

// Check finds exactly the excess that a search of all intervals finds.
func TestHistory_CheckAgreesWithEveryInterval(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	broken := 0
	for range 20_000 {
		points := make([]point, random.IntN(10))
		for i := range points {
			points[i] = point{at: random.Int64N(5) * 500_000, units: random.Int64N(4)}
			if random.IntN(4) == 0 { // off the grid, a microsecond beside a boundary
				points[i].at += random.Int64N(3) - 1
			}
		}
		capacity, leakRate, slack := 1+random.Int64N(6), random.Int64N(4), random.Int64N(2)
		checkAgainstEveryInterval(t, points, capacity, leakRate, slack)
		if worstExcess(points, capacity, leakRate, slack) > 0 {
			broken++
		}
	}
	errorIf(t, broken < 2_000 || broken > 18_000,
		"%d of 20 000 histories broke the law: too few of one kind to prove much", broken)
}

// Check finds exactly the excess that a search of all intervals finds.
func FuzzHistory_CheckAgreesWithEveryInterval(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 100, 2}, byte(2), byte(1), byte(0))
	f.Add([]byte{200, 3, 0, 3, 0, 0}, byte(3), byte(9), byte(1))
	f.Fuzz(func(t *testing.T, data []byte, capacity, leakRate, slack byte) {
		points := []point{}
		for pair := range slices.Chunk(data[:min(len(data), 40)&^1], 2) {
			points = append(points, point{at: int64(pair[0]) * 20_000, units: int64(pair[1] % 16)})
		}
		checkAgainstEveryInterval(t, points, 1+int64(capacity), int64(leakRate), int64(slack))
	})
}

// Check finds a departure that is a nanosecond early, and forgives the slack.
func TestHistory_CheckFindsANanosecond(t *testing.T) {
	tests := []struct {
		name                      string
		capacity, leakRate, slack float64
		gaps                      []time.Duration // before each departure of one unit but the first
		kept                      bool
	}{
		{"one at capacity one", 1, 10, 0, nil, true},
		{"one at half a capacity", 0.5, 10, 0, nil, false},
		{"one at half a capacity with slack", 0.5, 10, 0.5, nil, true},
		{"evenly spaced", 1, 10, 0, []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, true},
		{"a nanosecond early", 1, 10, 0, []time.Duration{100*time.Millisecond - 1}, false},
		{"a nanosecond early after a late one", 1, 10, 0, []time.Duration{time.Second, 100*time.Millisecond - 1}, false},
		{"lateness does not count for the next", 1, 10, 0, []time.Duration{150 * time.Millisecond, 50 * time.Millisecond}, false},
		{"lateness within the slack", 1, 10, 0.5, []time.Duration{150 * time.Millisecond, 50 * time.Millisecond}, true},
		{"a burst at capacity three", 3, 10, 0, []time.Duration{0, 0, 100 * time.Millisecond}, true},
		{"a burst of four", 3, 10, 0, []time.Duration{0, 0, 0}, false},
		{"a burst, and the next a nanosecond early", 3, 10, 0, []time.Duration{0, 0, 100*time.Millisecond - 1}, false},
		{"nothing leaks", 2, 0, 0, []time.Duration{time.Hour}, true},
		{"nothing leaks, and one too many", 2, 0, 0, []time.Duration{time.Hour, 100 * time.Hour}, false},
		{"a millionth per nanosecond", 1, 1000, 0, []time.Duration{time.Millisecond - 1}, false},
		{"a third per second", 1, 1.0 / 3, 0, []time.Duration{3 * time.Second, 3 * time.Second}, true},
		{"a long silence", 1, 1e-9, 0, []time.Duration{290 * 365 * 24 * time.Hour}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var h History
			at := noon
			h.Add(at, 1)
			for _, gap := range test.gaps {
				at = at.Add(gap)
				h.Add(at, 1)
			}
			err := h.Check(test.capacity, test.leakRate, test.slack)
			errorIf(t, (err == nil) != test.kept, "kept: want %v, got %v", test.kept, err)
		})
	}
}

// The rounding of 200 000 sums is no excess, and a microsecond is one.
func TestHistory_CheckForgivesRounding(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	const n = 200_000
	for _, rate := range []float64{3, 7, 10, 1000.0 / 3, 12345.678} {
		place := func(i int) time.Time { return noon.Add(time.Duration(math.Ceil(float64(i) * 1e9 / rate))) }
		var h History
		for i := range n {
			h.Add(place(i), 1)
		}
		slack := rate * 1e-9 // each is up to a nanosecond late
		errorIs(t, h.Check(1, rate, slack), nil, "%g per second", rate)
		use := h.Use(1, rate)
		errorIf(t, math.Abs(use-1) > 1e-4, "%g per second: use %g, want 1", rate, use)
		h.Add(place(n).Add(-time.Microsecond), 1)
		errorIf(t, h.Check(1, rate, slack) == nil, "%g per second: a departure 1 µs early is not found", rate)
	}
}

// The error has the window with the largest excess.
func TestExcess_IsTheWorstWindow(t *testing.T) {
	var h History
	h.Add(noon, 2)                                  // a smaller excess
	h.Add(noon.Add(10*time.Second), 1)              // the bucket is empty again
	h.Add(noon.Add(10500*time.Millisecond), 1)      // the worst ends here
	h.Add(noon.Add(10500*time.Millisecond), 1.25)   // with this one of the same instant
	h.Add(noon.Add(11*time.Second), 0.25)           // below the worst again
	h.Add(noon.Add(11*time.Second+time.Minute), .5) // no excess
	err := h.Check(1, 1, 0.25)
	excess, ok := errors.AsType[*Excess](fmt.Errorf("wrapped: %w", err))
	fatalIf(t, !ok, "got %v, want an *Excess", err)
	want := Excess{
		Window:  Window{Start: noon.Add(10 * time.Second), End: noon.Add(10500 * time.Millisecond), Units: 3.25, Departures: 3},
		Allowed: 1.75, Over: 1.5, Capacity: 1, LeakRate: 1, Slack: 0.25,
	}
	errorIf(t, *excess != want, "got  %+v\nwant %+v", *excess, want)
	equal(t, excess.Span(), 500*time.Millisecond, "span")
	text := "outboundtest: 3.25 units left within 500ms from 2000-01-01T12:00:10Z, " +
		"1.5 above 1.75 (1 burst, 1/s, slack 0.25)"
	errorIf(t, err.Error() != text, "got  %s\nwant %s", err, text)
}

// The order of Add changes no result.
func TestHistory_AddInAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	points := make([]point, 200)
	for i := range points {
		points[i] = point{at: int64(i/2) * 1000, units: int64(i)} // pairs at one instant
	}
	ordered := historyOf(points)
	for range 20 {
		shuffled := slices.Clone(points)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		h := historyOf(shuffled)
		slices.SortStableFunc(shuffled, func(a, b point) int { return int(a.at - b.at) })
		i := 0
		for at, units := range h.All() {
			if at.Sub(noon) != time.Duration(shuffled[i].at)*time.Microsecond || units != float64(shuffled[i].units) {
				t.Fatalf("departure %d: %v, %g, want %+v", i, at, units, shuffled[i])
			}
			i++
		}
		fatalIf(t, i != len(points) || h.Len() != len(points),
			"%d departures, Len %d, want %d", i, h.Len(), len(points))
		got, want := h.Check(100, 10, 0).Error(), ordered.Check(100, 10, 0).Error()
		fatalIf(t, got != want, "got  %s\nwant %s", got, want)
		fatalIf(t, h.Total() != ordered.Total() || h.Worst(5*time.Millisecond) != ordered.Worst(5*time.Millisecond),
			"windows depend on the order of adding")
	}
}

// A history may be used in any way.
func TestHistory_AnyUse(t *testing.T) {
	t.Run("A loop over All may change the history", func(t *testing.T) {
		h := historyOf([]point{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}})
		sum := 0.0
		for _, units := range h.All() {
			sum += units
			h.Add(noon.Add(-time.Hour), 10) // no lock is held while the loop runs
			h.Total()                       // sorts
			if units == 3 {
				break
			}
		}
		errorIf(t, sum != 6 || h.Len() != 8, "the loop saw %g units, want 6; %d departures, want 8", sum, h.Len())
	})
	// Use is 1 for calls that leave as early as the limit allows. An empty history has no window and no
	// excess.
	t.Run("A window includes its beginning, and not its end", func(t *testing.T) {
		var empty, two, early History
		two.Add(noon, 1)
		two.Add(noon.Add(time.Second), 1)
		equal(t, two.Worst(time.Second), Window{Start: noon, End: noon, Units: 1, Departures: 1}, "the first departure only")
		equal(t, two.Worst(time.Second+1), Window{Start: noon, End: noon.Add(time.Second), Units: 2, Departures: 2}, "both")
		for i := range 13 { // three, and then each half second one
			early.Add(noon.Add(time.Duration(max(0, i-2))*time.Second/2), 1)
		}
		equal(t, early.Use(3, 2), 1, "use")
		equal(t, early.Use(3, 4), 13.0/23, "use of twice the rate")
		equal(t, early.Total(), Window{Start: noon, End: noon.Add(5 * time.Second), Units: 13, Departures: 13}, "the total")
		errorIs(t, empty.Check(1, 1, 0), nil, "the check of an empty history")
		errorIf(t, empty.Worst(time.Second) != (Window{}) || empty.Total() != (Window{}) || empty.Use(1, 1) != 0 || empty.Len() != 0,
			"an empty history has a window")
		for range empty.All() {
			t.Error("an empty history has a departure")
		}
	})
	t.Run("Departures that are millennia apart do not overflow", func(t *testing.T) {
		var h History
		h.Add(noon, 1)
		h.Add(noon.AddDate(-2000, 0, 0), 1) // taken as 292 years before
		h.Add(noon.AddDate(+2000, 0, 0), 1)
		errorIs(t, h.Check(1, 1, 0), nil, "the error")
		w := h.Worst(math.MaxInt64)
		errorIf(t, w.Units != 1, "%g units in 292 years, want 1", w.Units)
		if w := h.Total(); !w.Start.Before(noon) || !w.End.After(noon) {
			t.Errorf("total %+v", w)
		}
	})
	bubble(t, "A History is safe for concurrent use", func(t *testing.T) {
		var h History
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 500 {
					time.Sleep(time.Duration(1+(i*7+j*13)%10) * time.Millisecond)
					h.Add(time.Now().Add(-time.Duration(j%3)*time.Millisecond), 1)
					if j%100 == 0 {
						h.Check(8, 8000, 0)
						h.Worst(time.Second)
					}
				}
			})
		}
		wg.Wait()
		var last time.Time
		for at := range h.All() {
			fatalIf(t, at.Before(last), "%v after %v", at, last)
			last = at
		}
		if total := h.Total(); total.Units != 4000 || h.Len() != 4000 {
			t.Errorf("%g units in %d departures, want 4000", total.Units, h.Len())
		}
	})
	t.Run("Invalid units, capacities, rates and slacks panic", func(t *testing.T) {
		nan, inf := math.NaN(), math.Inf(1)
		for _, bad := range []float64{nan, inf, -inf, -1} {
			wantPanic(t, "departure of", func() { new(History).Add(noon, bad) })
			wantPanic(t, "capacity", func() { new(History).Check(bad, 1, 0) })
			wantPanic(t, "leak rate", func() { new(History).Check(1, bad, 0) })
			wantPanic(t, "slack", func() { new(History).Check(1, 1, bad) })
			wantPanic(t, "capacity", func() { new(History).Use(bad, 1) })
			wantPanic(t, "leak rate", func() { new(History).Use(1, bad) })
		}
		wantPanic(t, "capacity 0", func() { new(History).Check(0, 1, 0) })
		wantPanic(t, "slack", func() { new(History).Check(math.MaxFloat64, 1, math.MaxFloat64) })
		wantPanic(t, "window of 0s", func() { new(History).Worst(0) })
		wantPanic(t, "window of -1ns", func() { new(History).Worst(-1) })
	})
}

// Worst finds the window that a search of all windows finds.
func TestHistory_WorstAgreesWithEveryWindow(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 5_000 {
		points := make([]point, 1+random.IntN(10))
		for i := range points {
			points[i] = point{at: random.Int64N(12), units: random.Int64N(4)}
		}
		length := 1 + random.Int64N(5)
		var want int64
		for _, from := range points {
			var sum int64
			for _, p := range points {
				if p.at >= from.at && p.at < from.at+length {
					sum += p.units
				}
			}
			want = max(want, sum)
		}
		w := historyOf(points).Worst(time.Duration(length) * time.Microsecond)
		if w.Units != float64(want) || w.Span() >= time.Duration(length)*time.Microsecond {
			t.Fatalf("%v: the fullest %d µs have %g units in %v, want %d", points, length, w.Units, w.Span(), want)
		}
	}
}
