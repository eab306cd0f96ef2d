package redisstore_test

import "runtime/debug"

// A miniredis makes a Lua state for each script, and nothing of it is left afterwards: with the
// usual setting a third of the processor time of these tests goes to the collector.
func init() { debug.SetGCPercent(400) }
