// Package pgstore keeps buckets in PostgreSQL 13 or newer, so that all processes of a fleet share
// one quota:
//
//	db := stdlib.OpenDBFromPool(pool) // of pgx; or any *sql.DB
//	err := pgstore.Migrate(ctx, db, pgstore.Config{})
//	store := pgstore.New(db, pgstore.Config{})
//	bucket, err := outbound.NewSharedBucket(store, "shopify:"+shop, outbound.Limit{Capacity: 39, LeakRate: 2})
//
// It imports the standard library only. Any driver of database/sql for PostgreSQL works: pgx with
// its package stdlib, and lib/pq. Prefer pgx: lib/pq ignores the context while it waits for a
// server that has fallen silent, until TCP gives up. A store whose six calls all wait so is
// unavailable until then, even if another server has taken over. No Config of a store cures that. A
// Dialer of pq.Connector does, whose connections set a deadline of a second before each Read:
// outbound/internal/pgtest/libpq_test.go has one of fifteen lines, for programs that do not LISTEN
// with it.
//
// The connections may go through pgbouncer in transaction mode, because nothing is left in a
// session. By default both drivers prepare a statement in one request and use it in the next, which
// may reach another session. So a data source name has to set
//
//   - for lib/pq: binary_parameters=yes
//   - for pgx: default_query_exec_mode=exec, cache_describe or simple_protocol
//
// Otherwise some operations run the statement of another process, and fail with an error that names
// these settings. The statement mode of pgbouncer fails all operations that lock a row. pgx shows
// the reason, and lib/pq returns "driver: bad connection".
//
// # Which store to take
//
// Take this one if you have PostgreSQL and no Redis, and package redisstore if you have Redis. Both
// keep the same limits, and a program changes only the store. In PostgreSQL a decision is an update
// of a row and a commit, on a server that has other work to do. If several processes write one row,
// each has it for itself in turn, for the time of a round trip. So a distant process delays the
// rest more than in Redis. For the processes of one machine a file is enough: examples/sqlite keeps
// buckets in SQLite. The example examples/fleetpg runs a fleet on PostgreSQL.
//
// # What it guarantees
//
// A bucket is one row, and every decision is one compare-and-swap of it by the server's own clock,
// as package rowstore explains. In any interval of length W at most Capacity + LeakRate*W units
// leave from all processes together. The server charges a decision exactly once, however often its
// reply is lost.
//
// By default a decision does not wait for the disk. A crash of the server loses what was charged in
// the last moments before it: three times wal_writer_delay, which is 0.6 s by default. A failover
// to a replica loses what the replica had not received. For each such loss at most one more
// Capacity is admitted, and store.EventDataLoss reports it. With Config.Durable a crash loses
// nothing.
//
// # What it costs
//
// A decision takes one round trip. Callers of a key that come meanwhile go together in the next
// one. A refusal and a look write nothing. If several processes write the same row in turn, a
// decision takes two: one finds the row written, and one writes it. If they all write it at the
// same time, each locks it, which takes three.
//
// A process that was alone with a row when it last wrote it sends one plain UPDATE. A function does
// the rest, and takes longer: new rows, several keys together, and what is sent again. It waits for
// no row that another session has locked. The UPDATE may wait for 1 ms. Then the server logs an
// error, and the function is called. If another process has written the row, the UPDATE changes
// nothing, and the decision takes one round trip more.
//
// All writes of a row but one a minute are HOT, so that a busy bucket needs no vacuum. Those of a
// row above 4 kB, as of four to six full windows, are not: two versions of it do not fit into a
// page.
//
// With one process on the server's machine a decision took 1.5 to 2 times as long as an upsert of
// one number, the least that it can be. From 64 callers of a key on there were 4 to 30 times as
// many decisions as such upserts. With 256 callers of 1000 keys there were as many. See
// testdata/peers.
//
// A long transaction in the same database, as of pg_dump or of a report, stops that. PostgreSQL
// then keeps all versions of the row, and each decision reads them, 40 µs more for each thousand.
// Batching bounds it to some hundred versions a second. Give the table a database of its own, on
// the same server, if you have such transactions: those of other databases cost nothing.
//
// # How many connections
//
// The store uses at most six connections at a time, and none while calls wait in a queue. So a
// fleet of n processes may need 6n of the server's max_connections, or a pgbouncer. Let the DB have
// six, with SetMaxOpenConns, and keep them, with SetMaxIdleConns: by default a DB keeps two, and
// opens and closes the rest all the time. Use them for the store only: with all connections in the
// program's transactions it is unavailable, and a transaction that waits for the store never ends.
// A decision cannot be in your transaction: its charge would hold the fleet until the commit.
//
// # When the server is unavailable
//
// Operations fail within Config.Timeout, and then immediately, with [store.ErrUnavailable]. A
// server is unavailable if waiting may help: it hangs, starts or shuts down, only reads, or lacks
// connections or disk. A missing table or permission, a wrong password, a rejected certificate, or
// a wrong mode of a pooler is no outage. Then each operation fails immediately with the server's
// words, and [store.EventDenied] reports it. A fallback.Store, of package outbound/fallback,
// decides what calls do meanwhile.
//
// # What the server sees
//
// The keys of rows are hashed unless Config.PlainKeys is set. A role needs no more than
//
//	GRANT USAGE ON SCHEMA … TO worker;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON dripfeed_buckets TO worker;
//	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA … TO worker; -- which PUBLIC may by default
//
// For such a role [Migrate] fails with "permission denied", even if the table is there. Run it when
// you deploy, as the owner of the schema.
//
// A row takes less than 200 bytes for one leaky limit and a few processes, and 0.8 to 1.3 kB more
// for each window that is full. Rows that have expired are deleted as new ones come, two for each,
// and [Prune] deletes all of them.
//
// ALTER TABLE dripfeed_buckets SET UNLOGGED spares the server the log of the table. Then a crash
// and a failover empty it: for each key at most one more Capacity is admitted.
package pgstore
