package store

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
)

// An Update whose context has ended fails with the context's error, and charges nothing.
func TestMemory_EndedContextChargesNothing(t *testing.T) {
	m := NewMemory()
	op := &Op{Limits: []Limit{{Capacity: 1, Rate: 1e-6}}, Action: Book, Costs: []Units{{1}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Update(ctx, "key", op); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if r, err := m.Update(t.Context(), "key", op); err != nil || len(r.Charges) != 1 {
		t.Errorf("%d booked, %v", len(r.Charges), err)
	}
}

// Many goroutines use one key and keys of their own: each key admits its capacity.
func TestMemory_ConcurrentUpdatesKeepTheLimit(t *testing.T) {
	const callers, each = 8, 50
	m := NewMemory()
	var running sync.WaitGroup
	var mu sync.Mutex
	booked := map[string]int{}
	for i := range callers {
		running.Go(func() {
			for j := range each {
				for _, key := range []string{"shared", strconv.Itoa(i*each + j)} {
					op := &Op{Limits: []Limit{{Capacity: each, Rate: 1e-6}}, Action: Book, Costs: []Units{{1}}}
					r, err := m.Update(context.Background(), key, op)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					booked[key] += len(r.Charges)
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	for key, n := range booked {
		if want := map[bool]int{true: each, false: 1}[key == "shared"]; n != want {
			t.Errorf("key %q: %d booked, want %d", key, n, want)
		}
	}
}
