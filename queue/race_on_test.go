//go:build race

package queue

// raced has simulations cut short: under the race detector they take five times as long.
const raced = true
