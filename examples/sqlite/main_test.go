package main

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rowsOf returns a store of its own on a file, as another process has it.
func rowsOf(t *testing.T, file string) *rowstore.Store {
	t.Helper()
	rows, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.db.Close() })
	return rowstore.New(rows, rowstore.Config{Timeout: time.Minute})
}

func TestConformance(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets.db")
	outboundtest.TestStore(t, func(t *testing.T) store.Store { return rowsOf(t, file) })
}

func TestBucket_OutlivesItsProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets.db")
	limit := outbound.Limit{Capacity: 30, LeakRate: 1e-5}
	var mu sync.Mutex
	admitted := 0
	for range 2 { // two runs, one after the other, of two processes each
		var all sync.WaitGroup
		for range 2 {
			bucket := outbound.Must(outbound.NewSharedBucket(rowsOf(t, file), "key", limit))
			all.Go(func() {
				for range 20 {
					if _, err := bucket.Acquire(t.Context(), outbound.Cost{1}); err == nil {
						mu.Lock()
						admitted++
						mu.Unlock()
					}
				}
			})
		}
		all.Wait()
	}
	if admitted != 30 {
		t.Errorf("%d calls went, and the capacity is 30", admitted)
	}
}

func TestFile_IsMadeByProcessesAtTheSameTime(t *testing.T) {
	for range 20 {
		file := filepath.Join(t.TempDir(), "buckets.db")
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if rows, err := open(file); err != nil {
					t.Error(err)
				} else {
					_ = rows.db.Close()
				}
			})
		}
		all.Wait()
	}
}

func TestProgram_SharesTheFile(t *testing.T) {
	if err := run(filepath.Join(t.TempDir(), "buckets.db"), 2); err != nil {
		t.Error(err)
	}
}
