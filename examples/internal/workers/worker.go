package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// orderEnv has the order in the environment of a worker process.
const orderEnv = "DRIPFEED_WORKER"

// Order is what a worker process has to know.
type Order struct {
	Fleet
	Index  int
	Way    string
	API    string // its URL
	Store  string // the URL of the store that has the bucket
	Bucket string // the bucket's key
	// Apart makes the workers begin at even distances. Workers without a shared bucket would call in
	// step: all in one burst, then a pause.
	Apart bool
}

// Bucket returns the bucket of a worker, or nil if nothing paces its calls. A bucket that is in a
// store is there through the counter.
type Bucket func(o *Order, c *Counter) (*outbound.Bucket, error)

// Work is the main function of a worker process, which calls until it is killed. In any other
// process it returns immediately.
func Work(bucket Bucket) {
	text := os.Getenv(orderEnv)
	if text == "" {
		return
	}
	signal.Ignore(os.Interrupt) // a Ctrl-C is for the program, which then ends its workers
	go func() {                 // the input ends when the program ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var o Order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		base := http.DefaultTransport.(*http.Transport).Clone()
		base.MaxIdleConnsPerHost = o.Waiters
		err = o.work(context.Background(), bucket, base)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// work begins once all workers can begin, and calls until ctx ends or the program has ended.
func (o *Order) work(ctx context.Context, bucket Bucket, base http.RoundTripper) error {
	count := new(Counter)
	b, err := bucket(o, count)
	if err != nil {
		return err
	}
	paced := &transport.Transport{Base: base}
	if b != nil {
		paced.Limiter = queue.New(b, queue.Config{})
	}
	if _, _, err := get(ctx, &http.Client{Transport: base}, o.API+readyPath); err != nil {
		return err
	}
	if o.Apart {
		sleep(ctx, time.Duration(float64(o.Index)/o.Rate*float64(time.Second)))
	}
	client := &http.Client{Transport: paced}
	var callers sync.WaitGroup
	for range o.Waiters {
		callers.Go(func() {
			for ctx.Err() == nil {
				o.call(ctx, client, count, b != nil)
			}
		})
	}
	callers.Wait()
	return ctx.Err()
}

// call makes one call, again and again until the API answers it. The call sends the API, which the
// program serves, what the program shows.
func (o *Order) call(ctx context.Context, client *http.Client, count *Counter, paced bool) {
	began := time.Now().UnixNano()
	for pause := 50 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		status, after, err := get(ctx, client, o.API+fmt.Sprintf(query, o.Index, began, count.n.Swap(0)))
		switch {
		case err != nil && ctx.Err() == nil:
			fmt.Fprintln(os.Stderr, err)
		case err == nil && status != http.StatusTooManyRequests:
			return
		case err == nil && paced:
			continue // the bucket knows of the refusal, so that the queue waits
		}
		sleep(ctx, after+rand.N(pause))
	}
}

// get makes one request. If the API refuses it, after is how long it asks to wait.
func get(ctx context.Context, client *http.Client, url string) (status int, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 if it is missing
	_, err = io.Copy(io.Discard, resp.Body)                    // so that the next request can use the connection
	return resp.StatusCode, time.Duration(seconds) * time.Second, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Counter is a store that counts the requests to another.
type Counter struct {
	store.Store
	n atomic.Int64
}

// Update implements [store.Store].
func (c *Counter) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	c.n.Add(1)
	return c.Store.Update(ctx, key, op)
}
