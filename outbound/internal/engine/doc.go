// Package engine is the part above the wire that stores across a network have in common. The
// author of such a store writes a [Carrier]. Its one task is to carry operations out on
// keys, atomically, by the store's clock. The engine makes a [leak.Store] of it:
//
//   - While a trip of a key is under way, further callers gather and go together in the next, as
//     one [leak.Op]. The engine divides the reply among them. Trips of many keys go in batches.
//   - The store makes a trip exactly once. A trip has a number, and the store records the last
//     number of each worker, and its outcome where the carrier cannot compute that again. If a reply is lost, the engine sends the trip with
//     the same number again, as often as it takes, and beside an attempt that hangs.
//   - No operation takes longer than Config.Timeout, whatever its context and the driver do.
//     If a caller has gone, the engine gives its booking back.
//   - The engine remembers a refusal for a second at most, and repeats it without a trip.
//   - The engine translates each reply's time to this process's clock, by an estimate.
//   - A server that does not answer is away: its operations fail at once, and one batch at a
//     time finds out whether it is back. Events tell of both.
//   - A key that has to wait for a lock goes beside the batches, so that no other key waits for it.
//   - Where a store spreads keys over nodes, each node has its own pipelines. A key that moves to a node
//     which does not answer goes on apart, with few others at a time, so that no key of the node that it has left waits
//     for it. Until it answers, one trip of the key at a time tries again. While a node hangs,
//     the engine also asks another node that may have been promoted.
//
// The files, in the order in which they use each other:
//
//	event.go        the events that are to be reported, in their order
//	clockoffset.go  how far the store's clock is ahead
//	carrier.go      Carrier, Trip, Attempt, Verdict, Nodes: the contract
//	refusal.go      the memory of a refusal
//	pendingop.go    an operation whose caller waits, and how long it waits
//	keyqueue.go     the operations that gather for a key
//	trip.go         makes one operation of many
//	outcome.go      makes many answers of one
//	server.go       which servers are away, and the events that tell it
//	nodes.go        which node has a key, and which may have it by now
//	batch.go        trips that go together, until all have an answer
//	pipeline.go     one batch after the other, and outages
//	stats.go        what is counted: Engine.Stats
//	engine.go       Engine: Update
//	inspect.go      methods for the tests of stores
package engine
