// Package redisstore keeps keys of package store in Redis.
//
// A script carries out the steps that each call needs, on leaky limits: hot.lua. It changes the
// state, and returns the numbers from before, the server's time and how many calls it has booked.
// Go computes the reply from these with [store.Op.ApplyAt]. For every other step Go reads the key,
// carries the step out, and writes the key if no other process has written it since: a swap.
package redisstore
