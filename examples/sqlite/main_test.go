package main

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore/rowstest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// rowsOf opens a file, as another process does.
func rowsOf(t *testing.T, file string) *rows {
	t.Helper()
	rows := exampletest.Must(open(file))
	t.Cleanup(func() { _ = rows.db.Close() })
	return rows
}

// storeOf returns a store of its own on a file.
func storeOf(t *testing.T, file string) *rowstore.Store {
	t.Helper()
	return rowstore.New(rowsOf(t, file), rowstore.Config{Timeout: time.Minute})
}

// together runs f n times at the same time.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// Buckets in a SQLite file conform to the contract of stores.
func TestRows_Conform(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets.db")
	rowstest.TestRows(t, func(t *testing.T) rowstore.Rows { return rowsOf(t, file) })
}

// Two runs in sequence, of two processes each, share the limit.
func TestRows_OutliveTheirProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets.db")
	var admitted atomic.Int32
	for range 2 {
		stores := []store.Store{storeOf(t, file), storeOf(t, file)}
		together(len(stores), func(i int) {
			bucket := outbound.Must(outbound.NewSharedBucket(stores[i], "key", outbound.Limit{Capacity: 30, LeakRate: 1e-5}))
			for range 20 {
				if _, err := bucket.Acquire(t.Context(), outbound.Cost{1}); err == nil {
					admitted.Add(1)
				}
			}
		})
	}
	if n := admitted.Load(); n != 30 {
		t.Errorf("%d calls are admitted, and the capacity is 30", n)
	}
}

// Processes that make the file at the same time all open it.
func TestOpen_FileIsMadeByProcessesAtTheSameTime(t *testing.T) {
	for range 20 {
		file := filepath.Join(t.TempDir(), "buckets.db")
		together(8, func(int) {
			if rows, err := open(file); err != nil {
				t.Error(err)
			} else {
				_ = rows.db.Close()
			}
		})
	}
}

// The program makes its calls.
func TestProgram_SharesTheFile(t *testing.T) {
	exampletest.NoError(t, run(filepath.Join(t.TempDir(), "buckets.db"), 2))
}
