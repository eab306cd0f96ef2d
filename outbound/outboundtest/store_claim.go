package outboundtest

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// claim books places for ten calls with a claim: the first however far away, the others
// within the horizon. It checks how many places there are, and the next claim.
func (e *exam) claim(b *outbound.Bucket, claim float64, horizon time.Duration, places int, next float64) {
	e.Helper()
	k := outbound.Booking{Wait: math.MaxInt64, Horizon: horizon, Claim: claim}
	for range 10 {
		k.Costs = append(k.Costs, outbound.Cost{1})
	}
	if err := b.Book(bg, &k); err != nil || len(k.Tickets) != places || k.Claim != next {
		e.failf("a claim of %v within %v had %d places and is %v now, %v; want %d and %v", claim, horizon, len(k.Tickets), k.Claim, err, places, next)
	}
}

func (e *exam) claims() {
	// Places are 10 s apart, so that it does not matter how long trips take.
	b := e.bucket(outbound.Limit{Capacity: 1, LeakRate: 0.1})
	e.claim(b, 0, 0, 1, 0)
	e.claim(b, math.Inf(1), time.Hour, 10, 10) // the first to claim anything leads
	e.claim(b, 10, 0, 1, 11)                   // and has nobody to catch up with
	e.claim(b, math.Inf(1), time.Hour, 10, 11) // a backlog that begins is level, and does not raise the lead
	e.claim(b, 9, 0, 2, 11)                    // two behind
	e.claim(b, 1, 0, 10, 11)                   // ten behind, and as far again as its first place, which is minutes away
	e.claim(b, 12, 0, 1, 11)                   // of another life: begins
	for _, none := range []float64{0, -1, math.Inf(-1), math.NaN()} {
		e.claim(b, none, 0, 1, 0)
	}
	e.claim(b, 11, 0, 1, 12) // none of those has raised the lead
	if err := b.Resume(bg); err != nil {
		e.failf("resume: %v", err)
	}
	e.claim(b, 12, 0, 1, 1) // a new life

	// A worker whose first place is near catches up by 100 ms at most.
	b = e.bucket(outbound.Limit{Capacity: 1, LeakRate: 25})
	e.claim(b, math.Inf(1), time.Hour, 10, 10)
	time.Sleep(400 * time.Millisecond)
	e.claim(b, 1, 0, 3, 4) // at 0, 40 and 80 ms from its first
}
