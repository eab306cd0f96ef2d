// Package engine is the part above the wire that stores across a network have in common. The author
// of such a store writes a [Carrier], which carries operations out on keys, atomically, by the
// store's clock. The engine makes a [store.Store] of it:
//
//   - While a trip of a key is under way, further callers gather and go together in the next, as
//     one [store.Op]. The engine divides the reply among them. Trips of many keys go in batches.
//   - The store makes a trip exactly once. A trip has a number, and the store records the last
//     number of each worker next to the key. If a reply is lost, the engine sends the trip with the
//     same number again until it is answered, and next to an attempt that hangs.
//   - No operation takes longer than Config.Timeout, whatever its context and the driver do. If a
//     caller has gone, the engine returns its booking.
//   - Nothing of a trip that has failed is carried out after a later trip of its key has returned:
//     the later one leaves a record, which stops the other.
//   - The engine remembers a refusal for a second at most, and repeats it without a trip.
//   - The engine translates each reply's time to this process's clock, by an estimate.
//   - A server that does not answer, or only reads, is down: its operations fail immediately, and
//     one of them at a time finds out whether it is up. Events report both.
//   - A key that has to wait for a lock goes next to the batches, so that no other key waits for
//     it.
//   - If the store has lost what it had on record, an event reports it, once. Charges from before
//     the loss return nothing. The step that finds the loss does nothing, and its operations go
//     with the next.
//   - Where a store spreads keys over nodes, each node has its own pipelines, so that no key waits
//     for another node. A trip whose key has another node by now goes there with the same number.
//
// # What it gives up
//
// Until the carrier has the nodes, at a program's start, the keys of all nodes share the pipelines.
// A silent node then delays them once, by a quarter of Config.Timeout.
//
// After a failover a key's calls fail until the store's client has learned the new node, about a
// second after the promotion. The engine asks no replica meanwhile. A key that has moved to a node
// that does not answer delays the keys of the node that it has left once, by a quarter of
// Config.Timeout, until the client has learned that it has moved.
//
// # The files
//
// In the order in which they use each other:
//
//	event.go        the events that are to be reported, and what a store has lost
//	clockoffset.go  how far the store's clock is ahead
//	carrier.go      Carrier, Trip, Attempt, Verdict, Nodes: the contract
//	refusal.go      the memory of a refusal
//	pendingop.go    an operation whose caller waits, and how long it waits
//	keyqueue.go     the operations that gather for a key
//	trip.go         makes one operation of many
//	outcome.go      makes many answers of one
//	server.go       which servers are down, and the events that report it
//	batch.go        trips that go together, and go again until each has an answer
//	pipeline.go     one batch after the other
//	stats.go        what is counted: Engine.Stats
//	engine.go       Engine: Update
//	inspect.go      methods for the tests of stores
package engine
