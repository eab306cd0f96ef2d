package outbound

import (
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

const maxCapacity = spec.MaxCapacity

// Cost is what a call takes, a number for each of up to four units: Cost{1} is one call. A program
// with several units indexes them with constants of its own,
//
//	const (
//		calls = iota
//		input
//		output
//	)
//	cost := outbound.Cost{calls: 1, input: 900, output: 300}
//
// and a [Limit] says which of the numbers it counts. Every number is finite and not negative, or
// [Free]. The number of the lowest unit that the bucket's limits count, by convention the calls, is
// above 0 or Free. Otherwise the error is [ErrInvalid], so that a forgotten number admits no call
// unpaced. The other numbers may be 0, as for costs that are known afterwards. A bucket with only
// an [InFlight] counts no unit.
//
// A call without a cost, such as Cost{Free}, waits for holds only: in a queue also for the calls
// before it, on a bucket it is admitted immediately. Under an [InFlight] it is a call in flight
// like any other, and waits for booked calls.
//
// What is less than a billionth of a limit's capacity counts as a billionth. What exceeds the
// capacity by less than half of that counts as the capacity: a sum may round so.
type Cost [4]float64

// units is how many numbers a cost has.
const units = store.MaxUnit + 1

var _ [units]float64 = Cost{}

// Free is the number in a [Cost] of a call that costs nothing in that unit, because a 0 would look
// forgotten. It counts as 0.
const Free = reports.Free // no number that a program computes by mistake, and next to 0 where it is added up

// numbers returns the cost as the packages below have it.
func (c *Cost) numbers() *reports.Numbers { return (*reports.Numbers)(c) }

// charged returns the cost with 0 for Free.
func (c Cost) charged() Cost {
	for i, n := range c {
		if n == Free {
			c[i] = 0
		}
	}
	return c
}

// valid reports whether every number is Free, or finite and not negative.
func (c *Cost) valid() bool { return reports.Valid(c.numbers()) }

// real reports whether a call can really have cost c. Nothing drains what is beyond the largest
// capacity, so such a number would shut a bucket permanently.
func (c *Cost) real() bool {
	return c.valid() && c[0] <= maxCapacity && c[1] <= maxCapacity && c[2] <= maxCapacity && c[3] <= maxCapacity
}
