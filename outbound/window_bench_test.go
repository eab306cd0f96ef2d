package outbound

import (
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

func TestWindow_AllocatesNoMoreThanALeakyLimit(t *testing.T) {
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
