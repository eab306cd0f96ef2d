package watch

import (
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Nothing is lost or counted twice when many come at once into a new second, long after its slot was used, while
// others look.
func TestAMinuteCountsEachCallOnce(t *testing.T) {
	var m minute
	const callers, calls = 4, 20
	for sec := range 3 * keptSeconds {
		at := time.Duration(sec)*time.Second + time.Second/2
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range calls {
					m.admit(at, 3, &outbound.Cost{2})
				}
			})
		}
		all.Go(func() {
			for _, s := range m.read(at).Seconds {
				if s.Admitted > callers*calls {
					t.Errorf("%d calls in a second", s.Admitted)
				}
			}
		})
		all.Wait()
		r, sum := m.read(at), uint64(0)
		for _, s := range r.Seconds {
			sum += s.Admitted
		}
		if n := uint64(callers * calls * min(60, sec+1)); r.Seconds[59].Admitted != callers*calls || sum != n {
			t.Fatalf("second %d: %d calls, %d in the minute, want %d", sec, r.Seconds[59].Admitted, sum, n)
		}
		if used := m.used(at, time.Minute, 0); sec > 60 && used != 2*callers*calls*60.5 { // half of the first second lies in it
			t.Fatalf("second %d: %v units in a minute", sec, used)
		}
	}
	m.admit(0, 0, &outbound.Cost{1}) // who is a minute late is not counted in the slot of another second
	if s := m.read(3*keptSeconds*time.Second - 1).Seconds[59]; s.Admitted != callers*calls {
		t.Errorf("%+v", s)
	}
}
