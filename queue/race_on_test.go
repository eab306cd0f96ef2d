//go:build race

package queue

// raced cuts simulations short: they take five times as long under the race detector.
const raced = true
