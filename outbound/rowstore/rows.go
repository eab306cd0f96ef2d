package rowstore

import (
	"context"
	"time"
)

// Rows is a table of rows that can be compared and swapped. It is all that the author of a store
// writes. A map behind a mutex is a Rows of twenty lines: see the example.
//
// The store calls Swap in up to six goroutines at a time, those of Lock included.
type Rows interface {
	// Swap carries each of swaps out by itself, atomically, in one round trip if it can. It writes
	// the fields Done, Busy, Row and Clock of each. The keys are in order and differ, so that Rows
	// which lock several rows lock them in that order. Swap does not wait for a row that is locked
	// for long, but leaves it Busy.
	//
	// It ends soon after ctx. ctx is never a caller's: it ends by Config.Timeout. After an error it
	// may be unknown which of the swaps were carried out. An error that matches
	// [store.ErrUnavailable] is one that a wait may cure: Swap is called again with the same swaps.
	// Any other error is the operations' error, immediately. What was answered is not carried out
	// again later, as when a request is sent twice: a swap that was Busy would be charged twice.
	Swap(ctx context.Context, swaps []Swap) error
}

// Row is a row as it is now. The zero value is a row that does not exist.
type Row struct {
	Token uint64 // names what Bytes are: another number after each write, and never 0
	Bytes []byte
}

// Swap is an operation on one row, and its result.
//
// The row is written if it has the token Old, and if the swap is [Swap.InTime]: then its token and
// its bytes are Token and New.
type Swap struct {
	Key   []byte
	Old   uint64        // 0 if there must be no row
	New   []byte        // nil to look only
	Token uint64        // of New
	Time  time.Duration // New is computed for this time, in whole microseconds
	// Keep is how long the row must be kept from now on. Rows may keep it for longer, and it is best
	// if most writes do not change when it may go.
	Keep time.Duration
	// Alone says that the Store's last step on the row has met no other process. So the row most
	// likely has the token Old, and Rows may first try what is cheaper and says less if it fails.
	Alone bool

	Done bool // the row was written
	Busy bool // the row is locked, so that it was not written
	// Row is the row as it is now. Its Bytes may be nil if it has the token Old, or if Done is set.
	// Its Bytes must not change from then on.
	Row Row
	// Clock is the Unix time of the rows, in nanoseconds, with microseconds: NOW(6) in MySQL. It is
	// read after the row was, and once no other process can change the row. If the rows have no
	// clock that all processes read, it is time.Now, or the clock of the server that has answered,
	// and Own is true.
	Clock time.Duration
	// Own says that other processes may read another clock. The time of a row then follows the
	// clock that is furthest ahead, as the package says under "Time".
	Own bool
}

// longest is how old the time of a swap may be.
const longest = time.Second

// InTime reports whether Time is at most a second before the clock, and not after it. Clock must
// have been read.
func (s *Swap) InTime() bool { return s.Time <= s.Clock && s.Clock-s.Time <= longest }

// Locker is a Rows that can also keep a row to itself while the store computes. Without it a
// distant process loses each race. The store calls Lock for up to two rows at a time.
type Locker interface {
	Rows
	// Lock waits until it has the row of s.Key for itself. It reads the row, and then the clock, into
	// s, and calls compute, which sets New, Token and Keep. It writes the row unless New is nil, and
	// lets it go. It calls compute at most once, and only if there is a row. If it does not get the
	// row in half of the time until ctx ends, it leaves the row Busy. If it has not asked for the
	// row, it fails as if ctx had ended. If another process could have written the row since Lock
	// read it, Lock fails and does not write. Errors are those of Swap.
	Lock(ctx context.Context, s *Swap, compute func()) error
}
