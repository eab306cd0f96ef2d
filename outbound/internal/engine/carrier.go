package engine

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Carrier carries trips out, for one engine. The author of a store writes it.
//
// A carrier may do a trip in one of two ways, and choose for each trip:
//
//   - The server does the step by itself, in one round trip. The carrier then computes the reply
//     with [store.Op.Apply], from the state before the step and the server's time, which the
//     server has returned.
//   - The carrier computes the step in Go, from the key as it was last seen, and the server swaps
//     the key if nothing has written it since. If it has been written, the verdict is Requeue: the
//     carrier keeps in Key.State what it has learned, and computes the key's next trip from that. A
//     trip that the server could not do by itself becomes a swap in the same way.
//
// The store knows the carrier as one worker. Each carrier needs a new name, such as a random
// number, because each engine numbers its trips from 1. The engine calls Compose and Take of one
// key one at a time. It holds a lock that other keys need, so neither may block. For different keys
// they may run at the same time.
type Carrier interface {
	// Compose prepares a trip before its first attempt. At most one trip of each key is under way.
	Compose(t *Trip)
	// Send makes one attempt at each trip, and writes its Reply or its Err. It returns when each
	// attempt has one, or soon after ctx has ended. Several attempts at one trip may run at the same
	// time, in any goroutine: at most four for a trip. At most 16 Sends run for a node, and one for
	// each key that is Apart, unless the store hangs.
	Send(ctx context.Context, todo []Attempt)
	// Take looks at the outcome of an attempt, and says how its trip goes on. After Done the engine
	// takes Reply as the trip's answer.
	Take(a *Attempt) Verdict
	// Unavailable wraps cause, which was the Err of a Later or an Elsewhere, in an error that
	// matches [store.ErrUnavailable]. It returns cause unchanged if the server is available and only
	// the key is not, because its row is locked for example.
	Unavailable(cause error) error
}

// Key is one key, and the carrier's knowledge of it.
type Key struct {
	Bucket string // as the program wrote it
	State  any    // the carrier's; nil until the carrier sets it. Only Compose and Take may use it
	// Apart says that the key's trips go next to the batches of other keys, in a Send of their own,
	// because they may have to wait for a lock. Send waits no longer than three quarters of
	// Config.Timeout, and the verdict is then Requeue. Take sets Apart. There are as many such trips at
	// a time as there are keys that are Apart. None has a second attempt next to the first.
	//
	// With the verdict Later and Apart set, the trip itself goes on so, with the same number.
	// Earlier attempts at it may still be under way.
	Apart bool
}

// Trip is one step of a key, for all operations that have gathered for it. The carrier has to carry
// it out exactly once, however many attempts that takes.
type Trip struct {
	Key *Key
	// Op joins what all the operations ask, with at most [MaxOps] costs. It is a copy that does not
	// change.
	Op store.Op
	// Seq is the trip's number. Later trips of the engine have higher numbers. For each worker the
	// store keeps the number of its last trip of a key, next to the key, and what is needed to answer
	// that trip again. If the number comes again, the store answers from this record. It skips lower
	// numbers, because their callers have left. A record has to last for as long as an attempt may be
	// under way.
	Seq int64
	// Last is the Seq on record when the store last answered for this key. If it is zero, it is
	// unknown. A store with a lower Seq on record has lost data. It does nothing then, since later
	// calls can have the IDs of lost charges. Its operations go with the key's next step, as after a
	// lost race, and Attempt.Recorded has that Seq.
	Last int64
	// Fence is true if the result of the key's last trip is unknown. The store has to record this
	// trip even if it changes nothing else: then it can no longer carry out the other one. Without
	// that, a search finds one call too many: a trip that has failed is carried out after a later one
	// has returned.
	Fence bool
	// Clock is no more than what the store's clock shows now. If it is zero, the time is unknown.
	Clock time.Duration
	// State is the carrier's. Compose sets it. What other goroutines read of it must not change.
	State any

	queue    *keyQueue
	ops      []*pendingOp
	gates    int            // how many of them ask for one of Op.Costs each
	main     *pendingOp     // the operation that asks for all of Op.Costs, or for another action
	acts     bool           // it may make a remembered refusal wrong
	began    time.Time      // when it was first sent
	until    time.Time      // when it has failed if it has no answer
	sends    int            // attempts so far; the shard's lock protects it and the fields below
	booked   int            // charges of the answer
	unserved bool           // an attempt has found the server unavailable, and said why
	batch    *batch         // it goes with this batch; if nil, it waits to be sent again
	one      [1]store.Units // memory for Op.Costs of one gate
}

// Attempt is one attempt at a trip.
type Attempt struct {
	*Trip
	// Into is the slice to which Send appends Reply.Charges. From then on the charges are the
	// engine's.
	Into []store.Charge
	// Reply is the store's answer from when it first carried the trip out. The engine writes When
	// and Received.
	Reply store.Reply
	// Now is what the store's clock has shown at a time between the attempt's beginning and its
	// end. If it is zero, Reply.State.At is such a time. It counts with Requeue too.
	Now time.Duration
	// Arrived is when the answer arrived. If it is zero, it is when Send returns.
	Arrived time.Time
	// Recorded is the Seq that the store had on record before the attempt, with Done and if the store
	// has lost data. It is 0 if there was no record, and -1 if that is unknown.
	Recorded int64
	// Keep is, with Done, for how long the record of this trip will stay at least. It is 0 for a trip
	// without a change, which is not recorded.
	Keep time.Duration
	// Doubt is, with Done, why the key may not be as package store would have left it. The engine
	// reports it as an EventCorrupt.
	Doubt error
	// Skew is, if the carrier has found clocks that differ too much, what it has found. The engine
	// reports it as an EventSkew.
	Skew error
	// Err is why there is no reply.
	Err error
	// Unasked says that no store was asked, although the verdict is Requeue.
	Unasked bool
	// Note is the carrier's, for Take.
	Note any

	buffer *[]store.Charge // the slice that Into uses
}

// Verdict says how a trip goes on after an attempt.
type Verdict uint8

// The verdicts. A key whose trips end with Requeue, because other workers are always first or it is
// locked, delays no other. Its operations fail with Err after Timeout, so Err must not match
// [store.ErrUnavailable].
const (
	Done      Verdict = iota // Reply is the answer
	Again                    // send it again immediately
	Later                    // send it again: a wait may cure Err
	Elsewhere                // send it again: another node has the key
	Requeue                  // nothing was done nor will be: its operations go with the key's next trip
	Failed                   // the store has answered Err, which no wait cures
	Denied                   // Failed, because the store denies this program access
	Unasked                  // Failed, and no store was asked
)

// Nodes finds the nodes of a store that spreads its keys over several. A node is an address.
type Nodes struct {
	// Known returns the node that the carrier takes for the key's owner. It is "" as long as the
	// carrier does not know the nodes: then Send finds them. It must not block.
	Known func(key string) string
	// Refresh makes the carrier look for the nodes again, in its own time. It must not block.
	Refresh func()
}

// Unavailable returns an error that matches [store.ErrUnavailable] and its cause. The text says
// what is unavailable.
func Unavailable(text string, cause error) error { return &unavailable{text, cause} }

type unavailable struct {
	text  string
	cause error
}

func (e *unavailable) Error() string        { return e.text + ": " + e.cause.Error() }
func (e *unavailable) Is(target error) bool { return target == store.ErrUnavailable }
func (e *unavailable) Unwrap() error        { return e.cause }
