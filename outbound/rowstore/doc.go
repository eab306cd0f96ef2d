// Package rowstore makes a [leak.Store] of any table whose rows can be compared and swapped. The
// author of a store writes [Rows], which is one method:
//
//	store := rowstore.New(myRows, rowstore.Config{})
//	bucket, err := outbound.NewSharedBucket(store, "shopify:"+shop, outbound.Limit{Capacity: 40, LeakRate: 2})
//
// Package pgstore does so for PostgreSQL, in SQL. The example has the rows of a map.
//
// # What it adds to the rows
//
// The law is computed in Go, in the worker. A worker remembers each row as it was last written. It
// computes the next step from that, and swaps the row if nobody has written it since. So a decision
// takes one trip. Callers of a key who come while a trip is under way go together in the next, and
// trips of many keys go in one Swap. A refusal, and a look, write nothing. The store remembers a
// refusal for a second at most, and repeats it without a trip.
//
// If another worker has written the row, the swap fails, and the worker computes again from the row
// as it is. A worker that is further away than others would lose each such race. So where the rows
// can be locked, as [Locker] does, a worker that has lost two races in a row locks the row for its
// next step, and goes on to lock it while others write it.
//
// A step is carried out exactly once, however often replies are lost. Each attempt at it sends the
// same bytes. The row has a record of the last step of each worker, for the 32 workers that wrote
// it last, and so tells whether an earlier attempt was carried out. A row has another random token
// after each write, so that what a failed-over database has lost does not come again under a token
// that counts.
//
// # Time
//
// Rows have a clock, which is the Unix time. A worker estimates it, and always a little low. The
// rows refuse a swap whose time is after their clock, or more than a second before it. So neither a
// wrong estimate nor a write that comes late counts. The clocks of the workers do not matter. That
// of the rows does: if somebody sets it forward, or a database takes over whose clock is ahead,
// buckets leak for time that has not passed, and up to one Capacity more goes out. If it is set
// back, nothing more does.
//
// # When the rows are away
//
// No operation takes longer than Config.Timeout. Until then the store repeats it, and then all
// callers that wait get an error that is [outbound.ErrAway]. For a moment, 20 ms to 250 ms, the
// store answers every call so at once, while one request finds out whether the rows are back. A row
// that somebody keeps locked delays its own key only. The store asks for it again after 5 ms to 100
// ms. Its calls fail after Config.Timeout with an error that is not ErrAway.
//
// # What it costs
//
// A row takes 60 bytes for one limit, some 30 more for each further one, and 12 for each of the
// last 32 workers. A window adds up to 128 entries of 10 bytes. Where more than 32 workers write a
// row at the same time, a step whose reply is lost can end in an error, because the row no longer
// knows whether it was carried out. Then it may be charged though its caller did not go. It is
// never charged twice.
//
// # The files
//
// Package outbound/internal/engine gathers callers into trips, and repeats a trip that got no
// answer. This package carries a trip out, as a swap of a row:
//
//	rows.go     Rows, Swap, Locker: what the author of a store writes
//	store.go    Config and Store, for programs
//	key.go      the name of a bucket's row
//	row.go      the bytes of a row: the bucket, and the last steps of workers
//	loss.go     how a loss of data shows
//	step.go     what a step makes of a row
//	carrier.go  what the engine asks: Compose, Send, Take
package rowstore
