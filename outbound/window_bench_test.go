package outbound

import (
	"runtime"
	"testing"
	"time"
)

// wide never has no room. Those of window remember a full log: 64 parts of 1 ms and more.
var wide = map[string][]Limit{
	"leaky":    {{Capacity: 1e9, LeakRate: 1e9}, {Capacity: 1e9, LeakRate: 1e9, Name: "second"}},
	"window":   {Window(1e9, 64*time.Millisecond), {Capacity: 1e9, LeakRate: 1e9, Name: "second"}},
	"windows":  {Window(1e9, 64*time.Millisecond), FixedWindow(1e9, time.Second).Of(0, "second")},
	"calendar": {Daily(1e12, time.UTC), {Capacity: 1e9, LeakRate: 1e9, Name: "second"}},
}

func TestADecisionByAWindowAllocatesNoMoreThanALeakyOne(t *testing.T) {
	allocs := func(name string) float64 {
		b := Must(NewBucket("k", wide[name]...))
		for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; { // until the log has grown
			mustAcquire(t, b).Done()
		}
		return testing.AllocsPerRun(1000, func() { mustAcquire(t, b).Done() })
	}
	leaky := allocs("leaky")
	for name := range wide {
		if n := allocs(name); n > leaky {
			t.Errorf("%s: %v allocations, of two leaky limits %v", name, n, leaky)
		}
	}
}

// A decision by a window in memory as a ratio to one by two leaky limits: of the best rounds
// of each, in turns, because a machine that is busy is busy for all.
//
//	go test -run - -bench BesideLeakyOnes ./outbound
func BenchmarkWindowsBesideLeakyOnes(b *testing.B) {
	const calls = 1000
	round := func(x *Bucket) time.Duration {
		begin := time.Now()
		for range calls {
			if _, err := x.Acquire(ctx, Cost{1}); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(begin)
	}
	buckets, best := map[string]*Bucket{}, map[string]time.Duration{}
	for name, limits := range wide {
		buckets[name], best[name] = Must(NewBucket(name, limits...)), time.Hour
		for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
			round(buckets[name])
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for name, x := range buckets {
			best[name] = min(best[name], round(x))
		}
	}
	for name, d := range best {
		b.ReportMetric(float64(d)/calls, "ns/"+name)
		b.ReportMetric(float64(d)/float64(best["leaky"]), name+"/leaky")
	}
}

// BenchmarkBucketBytes is the memory of a bucket that was used once.
func BenchmarkBucketBytes(b *testing.B) {
	for name, limits := range map[string][]Limit{
		"cell": {PerSecond(10)}, "two": {PerSecond(10), PerMinute(100)}, "three": {PerSecond(10), PerMinute(100), PerHour(1_000)}, "in flight": {PerSecond(10), InFlight(3)},
		"window": {Window(5_000, time.Hour)}, "per and window": {PerSecond(10), Window(5_000, time.Hour)}, "day": {Daily(10_000, time.UTC)},
	} {
		b.Run(name, func(b *testing.B) {
			const n = 10_000
			for b.Loop() {
				var before, after runtime.MemStats
				all := make([]*Bucket, n)
				runtime.GC()
				runtime.ReadMemStats(&before)
				for i := range all {
					all[i] = Must(NewBucket("k", limits...))
					if _, err := all[i].Acquire(ctx, Cost{1}); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/bucket")
				runtime.KeepAlive(all)
			}
		})
	}
}
