//go:build race

package outbound

// underRace makes the long loops of tests shorter, which the race detector
// slows down some fifty times.
const underRace = true
