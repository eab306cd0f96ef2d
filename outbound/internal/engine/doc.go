// Package engine is what stores across a network have in common: the part above the wire.
// The author of such a store writes a [Carrier], whose one task is to carry operations out
// on keys, atomically, by the store's clock. The engine makes a [leak.Store] of it:
//
//   - Callers of one key who come while a trip is under way go together in the next one, as
//     one [leak.Op], and the reply is divided among them. Trips of many keys go in batches.
//   - A trip is made exactly once. It has a number, and the store keeps a record of the last
//     number of each worker, with its outcome. A trip whose reply is lost is sent again with
//     the same number, as often as it takes, and beside an attempt that hangs.
//   - No operation takes longer than Config.Timeout, whatever its context and the driver do.
//     What is booked for a caller who has gone is given back.
//   - A refusal is remembered for a second at most, and heard again without a trip.
//   - Each reply is laid on this process's clock, by an estimate of the store's.
//   - A server that does not answer is away: operations fail at once, and one batch at a
//     time finds out whether it is back. Events tell of both.
//   - Where keys are spread over nodes, each node has its own pipelines, and another node
//     that may have been promoted is asked while one hangs.
//
// The files, in the order in which they use each other:
//
//	event.go        Event: what no call returns
//	clockoffset.go  how far the store's clock is ahead
//	carrier.go      Carrier, Trip, Attempt, Verdict, Nodes: the contract
//	refusal.go      the memory of a refusal
//	pendingop.go    an operation whose caller waits, and how long it does
//	keyqueue.go     the operations that gather for a key
//	trip.go         one operation of many
//	outcome.go      many answers of one
//	server.go       what was told of a server
//	nodes.go        which node has a key, and which may have it by now
//	batch.go        trips that go together, until all have an answer
//	pipeline.go     one batch after the other, and outages
//	engine.go       Engine: Update
//	inspect.go      what tests of stores look at
package engine
