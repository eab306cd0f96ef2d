package queue

import "testing"

// InPieces has queues foretell so many calls at a time, until the test ends.
func InPieces(t testing.TB, n int) {
	was := piece
	piece = n
	t.Cleanup(func() { piece = was })
}
