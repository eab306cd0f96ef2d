// Package redistest starts Redis servers for tests, and injects faults.
//
// [Shared] returns one server for all tests of a binary. [Start] starts one for a
// single test, to stop, kill, restart and configure. [StartCluster] and
// [StartSentinel] start sets of servers, and [SharedCluster] returns one cluster
// for all tests. [Proxy] stands between a client and a server, and delays, drops
// or cuts what they send. [StartWithClock] starts a server whose clock a test can
// set.
//
// The servers are real ones where redis-server is on PATH and the system is
// Linux. Elsewhere [Shared] and [Start] give a miniredis, inside the test's
// process. A test that needs more than a miniredis is skipped, and says why. With
// DRIPFEED_REQUIRE_REDIS=1 in the environment such a test fails, and no miniredis
// stands in.
//
// Servers listen on free ports of 127.0.0.1 only. They keep nothing on disk that
// outlives them. They end with the test that started them, and the shared ones
// end with its process, even if it crashes or is killed: then the kernel ends the
// servers, and a shell that waits for the end of a pipe removes their files. The
// package ends only processes that it has started.
//
// Methods that take a test may fail it, so call them in the test's goroutine.
// None of this works in a testing/synctest bubble: a server lives in real time.
package redistest
