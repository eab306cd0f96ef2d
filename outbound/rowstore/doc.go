// Package rowstore makes a [store.Store] of any table whose rows can be compared and swapped. The
// author of a store writes [Rows], which is one method:
//
//	store := rowstore.New(myRows, rowstore.Config{})
//	bucket, err := outbound.NewSharedBucket(store, "shopify:"+shop, outbound.Limit{Capacity: 39, LeakRate: 2})
//
// Package pgstore does so for PostgreSQL, in SQL. The example has the rows of a map. Package
// rowstest is the test that Rows have to pass. A database that one process has to itself, such as
// bbolt or badger, shares no bucket: it only keeps the buckets over a restart.
//
// # What it adds to the rows
//
// The arithmetic of the limits runs in Go, in the process. A process remembers each row as it was
// last written. It computes the next step from that, and swaps the row if no other process has
// written it since. So a decision takes one round trip. A [Swap] says if the process was alone with
// the row when it last wrote it: then a cheaper statement may do. Callers of a key that come during
// a request share the next one, and one Swap has the requests of many keys. A refusal and a look
// write nothing. The store remembers a refusal for a second at most, and repeats it without a
// request.
//
// If another process has written the row, the swap fails, and the store computes again from the row
// as it is. A distant process would lose each such race. So if the rows can be locked, as [Locker]
// does, a process that has lost two races in a row locks the row for its next step. It continues to
// lock it while other processes write it.
//
// A step is carried out exactly once, however often replies are lost. Each attempt at it sends the
// same bytes. The row has a record of the last step of each process, for the 32 processes that
// wrote it last, and so shows whether an earlier attempt was carried out. A row has another random
// token after each write. So a write for a row that a failed-over database has lost is never
// carried out.
//
// # Time
//
// Rows have a clock, which is the Unix time. A process estimates it, and always a little low. The
// rows refuse a swap whose time is after their clock, or more than a second before it. So neither a
// wrong estimate nor a write that comes late counts. The clocks of the processes do not matter. The
// clock of the rows counts. If it is set forward, or a database takes over with a clock that is
// ahead, buckets leak too early, and up to one Capacity more is admitted. If it is set back,
// nothing more is.
//
// Some rows have no clock, so that each process reads its own. They set [Swap.Own]. The time of a
// row is then the latest that any process has written, and runs on from there. It never steps back,
// and all processes have the same share. If the clocks differ by S, the processes admit in any
// interval W what the limits allow in W+S, and at most one Capacity more than in W. A process that
// sees a clock ahead of its own by 10 ms or more reports [store.EventSkew]. It sees less by the
// time that a row takes from the other process.
//
// # When the rows are unavailable
//
// No operation takes longer than Config.Timeout. Until then the store repeats it, and then all
// callers that wait get an error that matches [store.ErrUnavailable]. For a moment, 20 ms to 250
// ms, the store answers every call so immediately, while one request finds out whether the rows are
// available again. A row that another session keeps locked delays its own key only. The store asks
// for it again after 5 ms to 100 ms. Its calls fail after Config.Timeout with an error that is not
// ErrUnavailable.
//
// # What it costs
//
// A row takes about 100 bytes for one limit, and 12 for each of the last 32 processes. If more than
// 32 processes write a row at the same time, a step without a reply can end in an error, because
// the row does not show whether it was carried out. Then it may be charged although its caller did
// not leave. It is never charged twice.
//
// # The files
//
// Package outbound/internal/engine gathers callers into requests, and repeats a request without a
// reply. This package carries a request out, as a swap of a row:
//
//	rows.go     Rows, Swap, Locker: what the author of a store writes
//	store.go    Config and Store, for programs
//	key.go      what is known of a bucket's row, and its name
//	row.go      the bytes of a row: the bucket, and the last steps of processes
//	skew.go     the time of rows that have no clock
//	step.go     what a step makes of a row
//	carrier.go  what the engine asks: Compose, Send, Take
package rowstore
