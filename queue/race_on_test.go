//go:build race

package queue

// raced makes simulations shorter: they take five times as long under the race detector.
const raced = true
