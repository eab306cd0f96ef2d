package outbound

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// shape is how calls come in the hours of a day, or of a week.
type shape struct {
	name  string
	hours int
	rate  func(hour float64) float64 // of any size
}

// between is 1 from one hour of the day to another.
func between(from, to float64) func(float64) float64 {
	return func(h float64) float64 {
		if h := math.Mod(h, 24); h >= from && h < to {
			return 1
		}
		return 0
	}
}

var shapes = []shape{
	{"steady", 24, func(float64) float64 { return 1 }},
	{"office hours", 24, between(9, 17)},
	{"one burst", 24, func(h float64) float64 { return 0.01 + between(10, 10.4)(h) }},
	{"burst on a steady day", 24, func(h float64) float64 { return 1 + 12*between(6, 6.5)(h) }},
	{"night job", 24, between(1, 5)},
	{"long night job", 24, between(0, 9)},
	{"slow ramp", 24, func(h float64) float64 { return h }},
	{"lunch dip", 24, func(h float64) float64 { return between(8, 18)(h) - 0.8*between(12, 13)(h) }},
	{"every quarter of an hour", 24, func(h float64) float64 { return between(0, 0.05)(math.Mod(h, 0.25)) }},
	{"weekly", 168, func(h float64) float64 { return between(8, 18)(h) * between(0, 5)(h/24) }},
}

// steady reports whether calls come at one pace from a time until another, but for their quarters of an hour.
func (s *shape) steady(from, to time.Duration) bool {
	lo, hi := math.Inf(1), 0.
	for t := from; t < to; t += 15 * time.Minute {
		sum := 0.
		for k := range 15 {
			sum += s.rate((t + time.Duration(k)*time.Minute).Hours())
		}
		lo, hi = min(lo, sum), max(hi, sum)
	}
	return from >= 0 && hi <= lo*1.01
}

// times returns when n calls come.
func (s *shape) times(n int, r *rand.Rand) (all []time.Duration) {
	const slice = 10 * time.Second
	sum := 0.
	steps := s.hours * 360
	for i := range steps {
		sum += s.rate(float64(i) / 360)
	}
	due := 0.
	for i := range steps {
		more := s.rate(float64(i)/360) / sum * float64(n)
		for k := math.Ceil(due); k < due+more; k++ {
			at := time.Duration((float64(i) + (k-due)/more) * float64(slice))
			if r != nil { // as they come of themselves
				at = time.Duration((float64(i) + r.Float64()) * float64(slice))
			}
			all = append(all, at)
		}
		due += more
	}
	if r != nil { // a few more or less in each hour
		all = slices.DeleteFunc(all, func(time.Duration) bool { return r.IntN(2) == 0 })
	}
	slices.Sort(all)
	return all[:min(len(all), n)]
}

// foreseen is what the events of one process have said, and when.
type foreseen struct{ at, said []time.Duration }

// replay has calls come to processes in turn, and looks once an hour. It returns what each has foreseen, and when the
// quota was used up, or -1.
func replay(t *testing.T, processes []*Bucket, calls []time.Duration, end time.Duration) (all []*foreseen, used time.Duration) {
	begin := time.Now()
	var mu sync.Mutex
	for _, b := range processes {
		f := new(foreseen)
		all = append(all, f)
		t.Cleanup(b.Observe(func(e Event) {
			if mu.Lock(); e.Kind == EventRunsOut {
				f.at, f.said = append(f.at, time.Since(begin)), append(f.said, e.UsedUpIn)
			}
			mu.Unlock()
		}))
	}
	used = -1
	for i, at := range calls {
		time.Sleep(time.Until(begin.Add(at)))
		p, err := processes[i%len(processes)].Acquire(ctx, Cost{1})
		if err == nil {
			p.Done()
		} else if used < 0 && at > 2*time.Second && at < end-2*time.Second { // calls wait a second at midnight
			used = at
		}
	}
	synctest.Wait()
	return all, used
}

// An event foresees a used-up quota half an hour ahead if calls have come steadily for three hours. It says when within
// a tenth of the time left. No event comes in a period that ends below 80 %. Each of ten processes says the same.
func TestForecast_EventBeforeAQuotaIsUsedUp(t *testing.T) {
	const hour = time.Hour
	runs := []struct {
		n, processes int
		random       uint64 // the seed of calls that come at random times
	}{{n: 5_000, processes: 1}, {n: 20_000, processes: 1, random: 1}, {n: 2_000, processes: 10}, {n: 100, processes: 1}}
	if raced { // which is slow
		runs = runs[2:3]
	}
	for _, s := range shapes {
		for _, demand := range []float64{0.60, 0.79, 0.95, 1 / 0.9, 1 / 0.6} {
			for _, run := range runs {
				bubble(t, fmt.Sprintf("%s/%.2f/%+v", s.name, demand, run), func(t *testing.T) {
					var r *rand.Rand
					calls := int(float64(run.n) * demand)
					if run.random > 0 { // no more than these
						r = rand.New(rand.NewPCG(run.random, 1))
						calls = int(2 * (float64(calls) - 3*math.Sqrt(float64(calls)/2)))
					}
					limit := Daily(float64(run.n), time.UTC)
					if s.hours > 24 {
						time.Sleep(48 * hour) // 1 January 2000 is a Saturday
						limit = Weekly(float64(run.n), time.UTC)
					}
					processes, memory := []*Bucket{Must(NewBucket("k", limit))}, store.NewMemory()
					for i := 0; run.processes > 1 && i < run.processes; i++ {
						processes = append(processes[:i], Must(NewSharedBucket(memory, "k", limit)))
					}
					all, used := replay(t, processes, s.times(calls, r), time.Duration(s.hours)*hour)
					for _, f := range all {
						errorIf(t, demand < 0.8 && len(f.at) > 0, "a false alarm at %v said %v", f.at, f.said)
						errorIf(t, used >= 0 && s.steady(used-3*hour, used) && (len(f.at) == 0 || used-f.at[0] < hour/2),
							"used up at %v, events at %v", used, f.at)
						if len(f.at) == 0 {
							continue
						}
						if left := used - f.at[0]; left > 0 && s.steady(f.at[0]-3*hour, used) && math.Abs(float64(f.said[0]-left)) > 0.1*float64(left) {
							t.Errorf("at %v an event said %v, and it was %v", f.at[0], f.said[0], left)
						}
						for i := range f.at[1:] {
							errorIf(t, f.at[i+1]-f.at[i] < hour, "events at %v", f.at)
						}
					}
				})
			}
		}
	}
}

// An Explanation says when each kind of quota is used up, and nothing of one that lasts.
func TestForecast_EachKindOfQuota(t *testing.T) {
	for _, limit := range []Limit{Window(1000, 5*time.Hour), FixedWindow(1000, 5*time.Hour), Window(1000, time.Minute), Hourly(1000), Daily(1000, time.UTC), Weekly(1000, time.UTC), Monthly(1000, time.UTC)} {
		for _, demand := range []float64{0.9, 1.6} {
			for _, s := range []store.Store{nil, store.NewMemory()} {
				bubble(t, fmt.Sprintf("%s/%v/%t", limit.label(), demand, s != nil), func(t *testing.T) {
					b := Must(NewBucket("k", limit, PerSecond(1e6)))
					if s != nil {
						b = Must(NewSharedBucket(s, "k", limit, PerSecond(1e6)))
					}
					if time.Sleep(24*time.Hour + 2*time.Second); limit.form.Kind == store.Weekly {
						time.Sleep(24 * time.Hour)
					}
					if limit.form.Kind == store.Monthly {
						time.Sleep(30 * 24 * time.Hour)
					}
					defer b.Observe(func(Event) {})()
					mustAcquire(t, b).Done()
					length := states(t, b)[0].EmptyIn
					each := time.Duration(float64(length) / 1000 / demand)
					for i := 2; i <= 850; i++ {
						time.Sleep(each)
						mustAcquire(t, b).Done()
						if i != 400 && i < 845 {
							continue
						}
						e := explained(t, b, Cost{1})
						want := time.Duration(1000-i) * each
						got := e.States[0]
						if demand < 1 {
							want = 0
						}
						errorIf(t, got.UsedUpIn < want-want/20 || got.UsedUpIn > want+want/20 || math.Abs(got.Pace*each.Seconds()-1) > 0.05,
							"call %d: used up in %v at %v, want %v at %v", i, got.UsedUpIn, got.Pace, want, 1/each.Seconds())
						o := e.States[1]
						errorIf(t, o.Pace != 0 || o.UsedUpIn != 0, "a limit that is no quota: %+v", o)
					}
				})
			}
		}
	}
}

// A process foresees the end of a quota from what it knows.
func TestForecast_OfOneProcess(t *testing.T) {
	// Units that calls return count for nothing, and neither does the share of a process while the store
	// is unavailable.
	bubble(t, "A process that has just started foresees by what all have used of the period", func(t *testing.T) {
		memory := store.NewMemory()
		b := Must(NewSharedBucket(memory, "k", Daily(10_000, time.UTC)))
		time.Sleep(2 * time.Second)
		for range 600 { // half of 20 units return
			p := admit(t, b, 20)
			p.Settle(Cost{10})
			p.Done()
			time.Sleep(time.Minute)
		}
		look := func(b *Bucket) State {
			e := explained(t, b, Cost{1})
			return e.States[0]
		}
		s := look(b)
		errorIf(t, s.Pace != 0 || s.UsedUpIn != 0, "%v %v %v", "an unobserved bucket:", s.Pace, s.UsedUpIn)
		restarted := Must(NewSharedBucket(memory, "k", Daily(10_000, time.UTC)))
		defer restarted.Observe(func(Event) {})()
		if s := look(restarted); s.UsedUpIn < 395*time.Minute || s.UsedUpIn > 405*time.Minute {
			t.Errorf("level %v at %v a minute, used up in %v", s.Level, s.Pace*60, s.UsedUpIn)
		}
	})
	bubble(t, "A quota that is used up again and again has one event in an hour, and a limit that is none has no event", func(t *testing.T) {
		b, events := Must(NewBucket("k", Window(100, 10*time.Minute), Limit{Capacity: 50, LeakRate: 1, Name: "leaky"})), []Event(nil)
		defer b.Observe(func(e Event) { events = append(events, e) })()
		for range 12 {
			for range 100 {
				time.Sleep(2 * time.Second)
				mustAcquire(t, b).Done()
			}
			time.Sleep(15 * time.Minute)
		}
		synctest.Wait()
		errorIf(t, len(events) < 3 || len(events) > 4, "%v %v %v", len(events), "events in 3.7 hours:", events)
		for _, e := range events {
			errorIf(t, e.Limit != "100 in any 10m" || e.UsedUpIn <= 0 || e.UsedUpIn > time.Minute, "%v", e)
		}
	})
}

// A forecast follows a pace that has changed for as long as it reaches ahead. It counts from the last call if calls are
// rare, and goes on over midnight.
func TestForecast_FollowsThePace(t *testing.T) {
	type stretch struct{ long, each time.Duration }
	for name, of := range map[string]struct {
		quota float64
		from  time.Duration
		all   []stretch
		want  time.Duration
	}{
		"suddenly faster": {10_000, 2 * time.Second, []stretch{{6 * time.Hour, time.Minute}, {2 * time.Hour, time.Second}}, 2_440 * time.Second},
		"over midnight":   {1_000, 22 * time.Hour, []stretch{{4 * time.Hour, 30 * time.Second}}, 760 * 30 * time.Second},
		"rare":            {20, 2 * time.Second, []stretch{{16 * 36 * time.Minute, 36 * time.Minute}, {10 * time.Minute, time.Hour}}, 134 * time.Minute},
		"no more":         {1_000, 2 * time.Second, []stretch{{4 * time.Hour, 30 * time.Second}, {19 * time.Hour, time.Hour}}, 0},
	} {
		bubble(t, name, func(t *testing.T) {
			b := Must(NewBucket("k", Daily(of.quota, time.UTC)))
			defer b.Observe(func(Event) {})()
			time.Sleep(of.from)
			for _, s := range of.all {
				for end := time.Now().Add(s.long); !time.Now().Add(s.each).After(end); {
					time.Sleep(s.each)
					if p, err := b.Acquire(ctx, Cost{1}); err == nil {
						p.Done()
					}
				}
				if s.each > s.long {
					time.Sleep(s.long)
				}
			}
			e := explained(t, b, Cost{1})
			if got := e.States[0].UsedUpIn; got < of.want-of.want/50 || got > of.want+of.want/50 {
				t.Errorf("level %v, %v an hour: used up in %v, want %v", e.States[0].Level, e.States[0].Pace*3600, got, of.want)
			}
		})
	}
}
