package engine

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Carrier is what the author of a store writes: it carries trips out, for one engine. The
// store knows the carrier as one worker, by a name that is new for each, such as a random
// number, because each engine numbers its trips from 1. The engine calls Compose and Take of
// one key one at a time, with a lock held that other keys need, too: neither may block. For
// other keys they may run at the same time.
type Carrier interface {
	// Compose prepares a trip before its first attempt. Of each key one trip at most is
	// under way.
	Compose(t *Trip)
	// Send makes one attempt at each trip, and writes its Reply or its Err. It returns when
	// each has one, or soon after ctx has ended. to is the node to ask; nil: the carrier
	// knows. Several attempts at one trip may run at the same time, in any goroutine. At most
	// 16 for a node do, 4 for a trip, unless the store hangs.
	Send(ctx context.Context, to Node, todo []Attempt)
	// Take looks at what an attempt has brought, and says what comes of its trip. After Done
	// the engine takes Reply for the trip's.
	Take(a *Attempt) Verdict
	// Away makes an error that matches [leak.ErrAway] of its cause.
	Away(cause error) error
}

// Key is one key, and what the carrier knows of it.
type Key struct {
	Bucket string // as the program wrote it
	State  any    // the carrier's; nil until it sets it. Only Compose and Take may use it
}

// Trip is one step of a key, which serves all the operations that have gathered for it. The
// carrier has to carry it out exactly once, however many attempts that takes.
type Trip struct {
	Key *Key
	// Op is all that the operations ask, in one, with at most [MaxOps] costs. It is a copy,
	// which nobody changes.
	Op leak.Op
	// Seq is the trip's number. Later trips have higher numbers, in the whole engine. A store
	// keeps the number of the last trip that each worker has made of a key, and what it
	// booked. It answers a number that comes again with that, and carries out none that is
	// lower: nobody waits for that any more. A record has to last for as long as an attempt
	// may be under way.
	Seq int64
	// Fence says that what became of the key's last trip is not known. The store has to record
	// this one even if it changes nothing else: then the other can no longer be carried out.
	Fence bool
	// Clock is no more than what the store's clock shows now; 0: not known.
	Clock time.Duration
	// State is the carrier's. Compose sets it, and what other goroutines read of it stays as
	// it is from then on.
	State any

	queue *keyQueue
	ops   []*pendingOp
	gates []*pendingOp // those of ops that ask for one of Op.Costs each
	main  *pendingOp   // the one that asks for all of Op.Costs, or for another action
	acts  bool         // it may change what a refusal has said
	alone bool         // as in Attempt; the shard's lock protects it
	done  bool         // it has its answer; the shard's lock protects it
}

// Attempt is one attempt at a trip.
type Attempt struct {
	*Trip
	// Alone asks for this trip to go by itself, where others go together in one message: it
	// was sent to a node that no longer has its key.
	Alone bool
	// Aside says that the node which is asked is not known to have the key: only its Reply
	// says that it has.
	Aside bool
	// Into is where Send appends Reply.Charges, which are the engine's from then on.
	Into []leak.Charge
	// Reply is what the store has answered, when it carried the trip out first. When and Heard
	// are the engine's to write.
	Reply leak.Reply
	// Now is what the store's clock has shown at a time between the attempt's beginning and
	// its end; 0: Reply.State.At is such a time. With Anew it counts, too.
	Now time.Duration
	// Arrived is when the answer was here; zero: when Send returns.
	Arrived time.Time
	// Loss says what the store must have lost, because it knows less of the key than it has
	// said before; nil: nothing.
	Loss error
	// Err is why there is no reply.
	Err error
	// Note is the carrier's, for Take.
	Note any

	buffer *[]leak.Charge // what Into is of
}

// Verdict is what comes of a trip after an attempt.
type Verdict uint8

// The verdicts. A key whose trips end with Anew, because other workers are always first or it
// is locked, delays no other. Its operations fail with Err in the end, which is not Away.
const (
	Done      Verdict = iota // Reply is the answer
	Again                    // send it once more, at once
	Later                    // send it once more: a wait may cure Err
	Elsewhere                // send it once more: another node has the key
	Anew                     // nothing was done nor will be: its operations go with the key's next trip
	Failed                   // the store has answered Err, which no wait cures
	Denied                   // Failed, because the store does not let this program in
	Unasked                  // Failed, and no store was asked
)

// Node is a server that a carrier knows. Two with the same address are the same.
type Node interface{ Addr() string }

// Nodes is how an engine finds the nodes of a store that spreads its keys over several.
type Nodes struct {
	// Owner returns the node that has a key, with Done, or another verdict and its error. It
	// may ask the nodes, and take longer than ctx.
	Owner func(ctx context.Context, key string) (n Node, v Verdict, err error)
	// Known is Owner by what is known already. It must not block. nil: nothing is known.
	Known func(key string) Node
	// Heir returns a node that has a copy of a key, and refuses it until it is promoted. It
	// may take any time. nil: there is none. A nil Heir: no node but the owner may be asked.
	Heir func(key string) Node
	// Refresh has the nodes looked for again, by and by. It must not block.
	Refresh func()
}
