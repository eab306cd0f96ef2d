package engine_test

import (
	"sync"
	"time"
)

// table is the database: rows of bytes, and a compare-and-swap, like UPDATE … WHERE key = $1
// AND token = $2. It has a clock of its own.
type table struct {
	mu   sync.Mutex
	rows map[string]row
}

type row struct {
	token uint64 // each write draws another one; 0: there is no row
	state []byte
	last  map[string]int64 // the last trip of each worker
}

func newTable() *table { return &table{rows: make(map[string]row)} }

// swap writes a row if the old one is unchanged, and if the new one was computed for a time
// that is not after the clock's and at most a second before it. It returns the row
// afterwards, and the clock. A new row without a token only looks.
func (t *table) swap(key string, old uint64, new row, at time.Duration) (done bool, is row, clock time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	clock = time.Duration(time.Now().UnixNano())
	if t.rows[key].token == old && new.token != 0 && at <= clock && clock-at <= time.Second {
		t.rows[key], done = new, true
	}
	return done, t.rows[key], clock
}
