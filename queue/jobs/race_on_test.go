//go:build race

package jobs

// raced makes simulations fewer: they take ten times as long under the race detector.
const raced = true
