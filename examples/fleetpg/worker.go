package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/pgstore"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// workerEnv holds the order in the environment of a process that is to be a worker.
const workerEnv = "DRIPFEED_FLEETPG_WORKER"

// order is all that a worker has to know.
type order struct {
	Index, Waiters  int
	Rate, Burst     float64
	API, DB, Bucket string
}

// report is a line that a worker writes: what has happened since the line before.
type report struct {
	Ready            bool
	Answered, Failed int
	Trips            int64
	Waits            []time.Duration // of each call that was answered
	Error            string          // of a call that failed
}

// counter counts the queries of a worker.
type counter struct{ atomic.Int64 }

// TraceQueryStart implements [pgx.QueryTracer].
func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.Add(1)
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// work is a worker. It begins with the first line of its input, and ends with its input.
func work(text string, stdin io.Reader, stdout io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	config, err := pgx.ParseConfig(o.DB)
	if err != nil {
		return errors.New("the database has no URL")
	}
	trips := new(counter)
	config.Tracer = trips
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxOpenConns(6)
	db.SetMaxIdleConns(6)
	if err := db.Ping(); err != nil {
		return err
	}
	bucket, err := outbound.NewSharedBucket(pgstore.New(db, pgstore.Config{}), o.Bucket, outbound.Limit{Capacity: o.Burst, LeakRate: o.Rate})
	if err != nil {
		return err
	}
	calls := queue.New(bucket, queue.Config{})
	client := &http.Client{Transport: &transport.Transport{Limiter: calls}}

	var mu sync.Mutex
	var next report
	tell := json.NewEncoder(stdout)
	flush := func() error {
		mu.Lock()
		r := next
		next = report{}
		mu.Unlock()
		r.Trips = trips.Swap(0)
		return tell.Encode(r)
	}
	if err := tell.Encode(report{Ready: true}); err != nil {
		return err
	}
	lines := bufio.NewScanner(stdin)
	if !lines.Scan() {
		return nil
	}
	trips.Store(0)
	var callers sync.WaitGroup
	ended := make(chan struct{})
	for range o.Waiters {
		callers.Go(func() {
			for {
				begun := time.Now()
				err := call(client, &o)
				if errors.Is(err, queue.ErrClosed) {
					return
				}
				mu.Lock()
				if err == nil {
					next.Answered++
					next.Waits = append(next.Waits, time.Since(begun))
				} else {
					next.Failed++
					next.Error = err.Error()
				}
				mu.Unlock()
				if err != nil {
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	go func() {
		for lines.Scan() {
		}
		calls.Close() // calls that wait are not made
		callers.Wait()
		close(ended)
	}()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-tick.C:
			if err := flush(); err != nil {
				return err
			}
		case <-ended:
			return flush()
		}
	}
}

// call calls the API once.
func call(client *http.Client, o *order) error {
	req, err := http.NewRequest(http.MethodGet, o.API, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Worker", fmt.Sprint(o.Index))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
