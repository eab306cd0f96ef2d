package transport_test

import "runtime/debug"

// These tests make much garbage and keep little: with the usual setting a fifth of their
// processor time goes to the collector.
func init() { debug.SetGCPercent(400) }
