// Package redistest starts Redis servers for tests, and gives them faults.
//
// [Shared] is one server for all tests of a binary, [Start] one of the test's
// own, to stop, kill, restart and configure; [StartCluster] and [StartSentinel]
// start sets of them, and [SharedCluster] is one cluster for all tests.
// [Proxy] stands between a client and a server, and delays, loses or cuts what
// they say. [StartWithClock] starts a server whose clock a test can set.
//
// The servers are real ones where redis-server is on PATH and the system is
// Linux. Elsewhere [Shared] and [Start] give a miniredis, inside the test's
// process, and what that cannot do skips the test and says why. With
// DRIPFEED_REQUIRE_REDIS=1 in the environment nothing is replaced or skipped: the
// test fails instead.
//
// Servers listen on free ports of 127.0.0.1 only, keep nothing on disk that
// outlives them, and end with the test that started them, the shared ones with
// its process. That holds for a process that crashes or is killed, too: the
// kernel ends its servers, and a shell that waits for the end of a pipe removes
// their files. Only ever a process that was started here is ended.
//
// Methods that take a test fail it, and so belong into its goroutine. None of
// this works in a testing/synctest bubble: a server lives in real time.
package redistest
