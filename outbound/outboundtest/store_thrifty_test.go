package outboundtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// thrifty is a store that writes a key only if it has changed, as bytes, and forgets it when
// the Expire of that reply has passed.
type thrifty struct {
	mu     sync.Mutex
	rows   map[string]thriftyRow
	writes int
}

type thriftyRow struct {
	data  []byte
	until time.Time
}

func (s *thrifty) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := ctx.Err(); err != nil {
		return leak.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var row leak.Stored
	if old, ok := s.rows[key]; ok && time.Now().Before(old.until) {
		_ = row.UnmarshalBinary(old.data)
	}
	r := op.Apply(&row, time.Duration(time.Now().UnixNano()))
	if !r.Changed {
		return r, nil
	}
	keep := r.Expire
	if row.Stamp != 0 {
		keep += 30 * 24 * time.Hour
	}
	data, _ := row.MarshalBinary()
	s.rows[key] = thriftyRow{data, time.Now().Add(keep)}
	s.writes++
	return r, nil
}

func TestAStoreThatWritesOnlyWhatHasChangedPassesTheExam(t *testing.T) {
	TestStore(t, func(*testing.T) leak.Store { return &thrifty{rows: make(map[string]thriftyRow)} })
}

func TestLooksAndRefusalsWriteNothing(t *testing.T) {
	s := &thrifty{rows: make(map[string]thriftyRow)}
	ask := func(op leak.Op) {
		t.Helper()
		op.Limits = []leak.Limit{{Capacity: 1, Rate: 1e-6}}
		if _, err := s.Update(t.Context(), "key", &op); err != nil {
			t.Error(err)
		}
	}
	book := leak.Op{Action: leak.Book, Costs: []leak.Units{{1}}}
	for range 10 {
		ask(leak.Op{})
	}
	if s.writes != 0 {
		t.Errorf("%d writes for ten looks at a key that does not exist", s.writes)
	}
	ask(book)
	for range 10 {
		ask(leak.Op{})
		ask(book)
		ask(leak.Op{Reports: []leak.Report{{Kind: leak.Succeeded, Epoch: 7}}}) // of an epoch that is over
	}
	if s.writes != 1 {
		t.Errorf("%d writes for a booking, looks and refusals, want 1", s.writes)
	}
}
