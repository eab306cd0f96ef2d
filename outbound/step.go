package outbound

import (
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// step is one operation on a bucket: on its key, and on the slots of calls in flight.
type step struct {
	key.Step
	freed int  // slots that Back frees
	seats bool // each of Calls needs a slot
	inJob bool // Calls are further requests of jobs, which need no slots
}

// reply is the result of a step.
type reply struct {
	key.Reply
	inFlight  *Limit // the limit on calls in flight, or nil
	used      int    // calls in flight, if there is
	slots     bool   // each of Charges has a slot of the calls in flight
	noSlot    bool   // refused because there is none
	collected int    // calls in flight whose permits were dropped without Done

	missed []store.Charge // behind Charges, and without a slot
	slept  time.Duration  // since the reply came, for slots
}
