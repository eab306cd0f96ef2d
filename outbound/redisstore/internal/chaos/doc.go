// Package chaos has tests only. Workers share a bucket in Redis, while each
// fault happens to them, to the server or to the network. The table in
// matrix_test.go names the faults, the tests of each, and its cost.
//
// In each test the workers call an API, or write down when they call. Then the
// test checks two things. First, the reservations that the store has granted keep the
// limit in bucket time: to the microsecond, however busy the machine was.
// Second, the calls keep it by the machine's clock. Calls that are late come
// closer together. So there the test allows the cost of the fault, the tolerance
// of the queue, and the lateness that it has measured meanwhile, at the leak
// rate. A window has no rate: at most its units go in any interval of its length, and what
// lateness moved into an interval does not count in it. What a fault may cost is a cost, in
// promise_test.go, which says why it is no less and no more.
//
// All random numbers come from a seed. The test prints it, and DRIPFEED_SEED
// sets it. The same seed gives the same kills, pauses and partitions at the same
// moments, but processes and networks are as fast as they are that day.
//
// The tests need Linux and a redis-server, and are skipped without them, as
// package redistest says.
package chaos
