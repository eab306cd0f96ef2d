package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

// mapRows are the rows of a map: all that a store needs.
type mapRows struct {
	mu   sync.Mutex
	rows map[string]rowstore.Row
}

// Swap implements [rowstore.Rows].
func (m *mapRows) Swap(_ context.Context, swaps []rowstore.Swap) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range swaps {
		s, key := &swaps[i], string(swaps[i].Key)
		s.Clock, s.Own = time.Duration(time.Now().UnixNano()), true
		if s.New != nil && m.rows[key].Token == s.Old && s.InTime() {
			m.rows[key], s.Done = rowstore.Row{Token: s.Token, Bytes: s.New}, true
		}
		s.Row = m.rows[key]
	}
	return nil
}

// A store on a map. A database takes the place of the map, as in package pgstore.
func Example() {
	rows := &mapRows{rows: make(map[string]rowstore.Row)}
	limit := outbound.Limit{Capacity: 2, LeakRate: 0.01}
	for range 2 { // two workers, each with a store of its own
		bucket := outbound.Must(outbound.NewSharedBucket(rowstore.New(rows, rowstore.Config{}), "weather", limit))
		for range 2 {
			_, err := bucket.Acquire(context.Background(), outbound.Cost{1})
			fmt.Println(errors.Is(err, outbound.ErrThrottled))
		}
	}
	// Output:
	// false
	// false
	// true
	// true
}
