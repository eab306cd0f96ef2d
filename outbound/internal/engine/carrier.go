package engine

import (
	"context"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Carrier carries trips out, for one engine. It is the part that the author of a store writes.
// The store knows the carrier as one worker. Give each carrier a name that is new, such as a
// random number, because each engine numbers its trips from 1. The engine calls Compose and
// Take of one key one at a time, and holds a lock that other keys need, too: neither may block.
// For other keys they may run at the same time.
type Carrier interface {
	// Compose prepares a trip before its first attempt. At most one trip of each key is under
	// way.
	Compose(t *Trip)
	// Send makes one attempt at each trip, and writes its Reply or its Err. It returns when each
	// attempt has one, or soon after ctx has ended. to is the node to ask; nil: the carrier knows it.
	// Several attempts at one trip may run at the same time, in any goroutine: at most 16 for a node
	// and 4 for a trip, and 64 more for trips whose keys have moved to another node, unless the store
	// hangs.
	Send(ctx context.Context, to Node, todo []Attempt)
	// Take looks at the outcome of an attempt, and says how its trip goes on. After Done the
	// engine takes Reply as the trip's answer.
	Take(a *Attempt) Verdict
	// Away wraps cause, which was the Err of a Later, in an error that matches [leak.ErrAway]. It returns cause as
	// it is if that is no outage but the key's own, as a lock that somebody keeps.
	Away(cause error) error
}

// Key is one key, and the carrier's knowledge of it.
type Key struct {
	Bucket string // as the program wrote it
	State  any    // the carrier's; nil until the carrier sets it. Only Compose and Take may use it
	// Apart says that the key's next trip goes beside the batches of other keys, in a Send of
	// its own, because it may have to wait for a lock. Send waits no longer than three quarters of
	// Config.Timeout, and the verdict is then Anew. Take sets Apart. There are as many such
	// trips at a time as there are keys that want one. None has a second attempt beside the first.
	//
	// With a verdict Later and Apart set, the trip itself goes on so: the other trips that went with it
	// do not wait for it. After Timeout its operations fail with what Away makes of Err. Attempts from
	// before may be under way beside its own.
	Apart bool
}

// Trip is one step of a key, and serves all the operations that have gathered for it. The
// carrier has to carry it out exactly once, however many attempts that takes.
type Trip struct {
	Key *Key
	// Op joins what all the operations ask, with at most [MaxOps] costs. It is a copy, and
	// nobody changes it.
	Op leak.Op
	// Seq is the trip's number. Later trips of the engine have higher numbers. For each worker
	// the store keeps the number of its last trip of a key, and the charges that this trip
	// booked. If that number comes again, the store answers from this record. It carries out no
	// lower number, because nobody waits for that trip any more. A record has to last for as
	// long as an attempt may be under way.
	Seq int64
	// Fence says that the engine does not know what became of the key's last trip. The store
	// has to record this trip even if it changes nothing else: then it can no longer carry out
	// the other one.
	Fence bool
	// Clock is no more than what the store's clock shows now; 0: not known.
	Clock time.Duration
	// State is the carrier's. Compose sets it, and what other goroutines read of it stays as
	// it is from then on.
	State any

	queue *keyQueue
	ops   []*pendingOp
	gates []*pendingOp // the operations that ask for one of Op.Costs each
	main  *pendingOp   // the operation that asks for all of Op.Costs, or for another action
	acts  bool         // it may make a remembered refusal wrong
	alone bool         // as in Attempt; the shard's lock protects it
	done  bool         // it has its answer; the shard's lock protects it
	sent  bool         // it was sent before; the shard's lock protects it
	batch *batch       // in which it goes on apart; nil: it stays with the others; the shard's lock protects it
}

// Attempt is one attempt at a trip.
type Attempt struct {
	*Trip
	// Alone says that this trip must go by itself, even if the carrier sends others together in
	// one message: an earlier attempt went to a node that no longer has the key.
	Alone bool
	// Aside says that the node which is asked is not known to have the key: only its Reply
	// says that it has.
	Aside bool
	// Into is the slice to which Send appends Reply.Charges. From then on the charges are the
	// engine's.
	Into []leak.Charge
	// Reply is the store's answer from when it first carried the trip out. The engine writes
	// When and Heard.
	Reply leak.Reply
	// Now is what the store's clock has shown at a time between the attempt's beginning and
	// its end; 0: Reply.State.At is such a time. With Anew it counts, too.
	Now time.Duration
	// Arrived is when the answer arrived; zero: when Send returns.
	Arrived time.Time
	// Loss says what the store has lost: it knows less of the key than it has answered before.
	// nil: it has lost nothing. With Anew it counts, too.
	Loss error
	// Err is why there is no reply.
	Err error
	// Unasked says that no store was asked, though the verdict is Anew.
	Unasked bool
	// Note is the carrier's, for Take.
	Note any

	buffer *[]leak.Charge // the slice that Into uses
}

// Verdict says how a trip goes on after an attempt.
type Verdict uint8

// The verdicts. A key whose trips end with Anew, because other workers are always first or it
// is locked, delays no other. Its operations fail with Err after Timeout: Err must not match [leak.ErrAway].
const (
	Done      Verdict = iota // Reply is the answer
	Again                    // send it once more, at once
	Later                    // send it once more: a wait may cure Err
	Elsewhere                // send it once more: another node has the key
	Anew                     // nothing was done nor will be: its operations go with the key's next trip
	Failed                   // the store has answered Err, which no wait cures
	Denied                   // Failed, because the store denies this program access
	Unasked                  // Failed, and no store was asked
)

// Node is a server that a carrier knows. Two with the same address are the same.
type Node interface{ Addr() string }

// Nodes finds the nodes of a store that spreads its keys over several.
type Nodes struct {
	// Owner returns the node that has a key, with Done, or another verdict and its error. It
	// may ask the nodes, and take longer than ctx.
	Owner func(ctx context.Context, key string) (n Node, v Verdict, err error)
	// Known returns the node that the carrier takes for the key's owner, without asking. It
	// must not block. nil: the carrier knows none.
	Known func(key string) Node
	// Heir returns a replica of a key's node, which refuses the key until it is promoted. It
	// may take any time. nil: there is none. If the field Heir is nil, the engine may ask no
	// node but the owner.
	Heir func(key string) Node
	// Refresh makes the carrier look for the nodes again, in its own time. It must not block.
	Refresh func()
}

// Away returns an error that matches [leak.ErrAway] and its cause. The text says what is away.
func Away(text string, cause error) error { return &awayError{text, cause} }

type awayError struct {
	text  string
	cause error
}

func (e *awayError) Error() string        { return e.text + ": " + e.cause.Error() }
func (e *awayError) Is(target error) bool { return target == leak.ErrAway }
func (e *awayError) Unwrap() error        { return e.cause }
