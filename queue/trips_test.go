package queue

import (
	"testing"
	"time"
)

func TestTrips_AreMeasured(t *testing.T) {
	for _, c := range []struct {
		name                     string
		was                      trips
		took, wayBack, tolerance time.Duration
		want                     trips
	}{
		{"the first", trips{}, 8 * ms, 4 * ms, 5 * ms, trips{mean: 8 * ms, deviation: ms * 3 / 4, wayBack: 4 * ms}},
		{"in this process", trips{}, 0, 0, 5 * ms, trips{mean: 1}},
		{"as usual", trips{mean: 8 * ms, deviation: ms}, 8 * ms, 2 * ms, 5 * ms, trips{mean: 8 * ms, deviation: ms * 3 / 4}},
		{"longer", trips{mean: 8 * ms, deviation: ms}, 16 * ms, 0, 5 * ms, trips{mean: 9 * ms, deviation: ms * 11 / 4}},
		{"shorter", trips{mean: 8 * ms, deviation: 4 * ms}, 4 * ms, 0, 5 * ms, trips{mean: 8*ms - ms/2, deviation: 4 * ms}},
		{"far too long", trips{mean: 8 * ms, deviation: ms}, time.Second, 0, 5 * ms, trips{mean: 8*ms + 10*ms/8, deviation: ms + 9*ms/4}},
		{"less than half, as after one that opened a connection", trips{mean: 80 * ms, deviation: ms}, 8 * ms, 0, 5 * ms, trips{mean: 8 * ms, deviation: ms * 3 / 4}},
		{"after an outage that was over at once", trips{mean: ms, deviation: ms}, 80 * ms, 40 * ms, 5 * ms, trips{mean: 41*ms + ms/4, deviation: ms + 9*ms/4, wayBack: 40 * ms}},
		{"the way back is half the tolerance", trips{mean: 8 * ms, wayBack: 4 * ms}, 8 * ms, 4 * ms, 8 * ms, trips{mean: 8 * ms}},
	} {
		c.was.measure(c.took, c.wayBack, c.tolerance)
		if c.was != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, c.was, c.want)
		}
	}
	if got := (&trips{mean: 8 * ms, deviation: 2 * ms}).lowMark(); got != 21*ms {
		t.Errorf("low mark %v", got)
	}
}
