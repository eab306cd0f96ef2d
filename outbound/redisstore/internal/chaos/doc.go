// Package chaos has tests only: workers that share a bucket in Redis, while
// everything breaks that can. The table in matrix_test.go says which test shows
// what becomes of which fault.
//
// Each test has the workers call an API, or write down when they call, and then
// asks two things of what happened. First, whether the places that the store has
// granted keep the limit on the bucket's own dial: to the microsecond, whatever
// the machine was busy with. Then, whether the calls did, on the clock of the
// machine. What is late on the way makes them come closer together: so the
// allowance there has what the fault may cost, the tolerance of the queue, and
// what the lateness that was measured meanwhile is worth at the leak rate.
//
// Whatever is left to chance is drawn from a seed that the test prints, and that
// DRIPFEED_SEED sets: the same kills, pauses and partitions come at the same
// moments then, but processes and networks are as fast as they are that day.
//
// The tests need Linux and a redis-server, and are skipped without, as package
// redistest says.
package chaos
