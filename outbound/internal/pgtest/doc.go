// Package pgtest tests package pgstore on real PostgreSQL servers, with pgx and with lib/pq. It is
// a module of its own, so that no user of dripfeed downloads a driver for it.
//
// The tests start the servers: from PATH, pg_config --bindir, or /usr/lib/postgresql. As root they
// use another user, because a server does not run as root. Without a server they are skipped, and
// say why; with DRIPFEED_REQUIRE_POSTGRES=1 in the environment they fail. DRIPFEED_POSTGRES_URL, a
// postgres:// URL of a superuser, names a server to use instead where a test does not stop it.
//
// The table in faults_test.go names the faults of a server and of the connections to it, and what
// each may cost. Three processes share a bucket through each of them.
//
// Servers listen on free ports of 127.0.0.1 only. They and their files end with the test, or with
// its process.
package pgtest
