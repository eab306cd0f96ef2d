package queue

import (
	"testing"

	"github.com/dripfeed/dripfeed/outbound"
)

// Once no call is in line the sums are zero: no rounding error is left behind.
func TestWaiters_EmptyLineHasNoSum(t *testing.T) {
	q := New(bucket(t, outbound.PerSecond(1)), Config{})
	var all []*waiter
	for _, n := range []float64{0.1, 0.2, 0.3} {
		w := &waiter{cost: outbound.Cost{n}}
		q.line.add(w, true)
		all = append(all, w)
	}
	for _, i := range []int{1, 2, 0} {
		q.line.remove(all[i])
	}
	if q.line.all != (outbound.Cost{}) || q.line.sure != (outbound.Cost{}) {
		t.Errorf("%v and %v are left", q.line.all, q.line.sure)
	}
}
