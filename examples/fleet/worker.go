package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/queue"
)

// order is the first line that a worker reads: all that it has to know. The lines that follow
// are wordGo and wordStop. When its input ends, the process that started it is gone, and the
// worker ends, too.
type order struct {
	Mode    mode    `json:"mode"`
	Index   int     `json:"index"`
	Workers int     `json:"workers"`
	Waiters int     `json:"waiters"`
	Rate    float64 `json:"rate"`
	Burst   float64 `json:"burst"`
	Seed    uint64  `json:"seed"`
	API     string  `json:"api"`
	Redis   string  `json:"redis"`
	Bucket  string  `json:"bucket"` // its key
}

const (
	wordGo   = "go"
	wordStop = "stop"
)

// report is a line that a worker writes: Ready once, before it goes, then what has happened
// since the line before, and at last Done.
type report struct {
	Ready    bool    `json:"ready,omitempty"`
	Answered int     `json:"answered,omitempty"`
	Refused  int     `json:"refused,omitempty"`
	Failed   int     `json:"failed,omitempty"`
	Commands int     `json:"commands,omitempty"` // scripts that the worker asked Redis to run
	Waits    []int64 `json:"waits,omitempty"`    // µs, of each call that was answered
	Error    string  `json:"error,omitempty"`    // of the first call that failed
	Done     bool    `json:"done,omitempty"`
}

const (
	reportEvery = 50 * time.Millisecond // the last calls of a killed worker are lost
	lastCalls   = 5 * time.Second       // for calls that are under way at the end
	firstPause  = 50 * time.Millisecond
	longPause   = time.Second
)

// worker is what one process of the fleet does.
type worker struct {
	order
	client  *http.Client
	queue   *queue.Queue  // nil: nothing paces the worker
	scripts *scripts      // nil: it needs no Redis
	stopped chan struct{} // closed when no new call may begin

	mu   sync.Mutex // protects what is below
	next report
}

// work is a worker's main function.
func work(stdin io.Reader, stdout io.Writer) int {
	in := bufio.NewScanner(stdin)
	out := json.NewEncoder(stdout)
	if !in.Scan() {
		return 1
	}
	w := &worker{stopped: make(chan struct{})}
	err := json.Unmarshal(in.Bytes(), &w.order)
	if err == nil {
		err = w.equip(w.newBase())
	}
	if err != nil {
		_ = out.Encode(report{Error: err.Error()}) // if nobody reads this, there is no other place to say it
		return 1
	}
	if out.Encode(report{Ready: true}) != nil || !in.Scan() || in.Text() != wordGo {
		return 1
	}
	told := make(chan bool, 1)
	go func() { told <- in.Scan() && in.Text() == wordStop }()
	return w.serve(out, told)
}

// serve calls until the order to stop comes, and reports meanwhile.
func (w *worker) serve(out *json.Encoder, told <-chan bool) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if !w.sleep(w.startsAfter()) {
			return
		}
		var all sync.WaitGroup
		for i := range w.Waiters {
			all.Go(func() { w.wait(ctx, uint64(i)) })
		}
		all.Wait()
	}()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if out.Encode(w.take()) != nil {
				return 1
			}
		case orderly := <-told:
			if !orderly {
				return 1
			}
			w.stop()
			time.AfterFunc(lastCalls, cancel)
		case <-ended:
			last := w.take()
			last.Done = true
			if out.Encode(last) != nil {
				return 1
			}
			return 0
		}
	}
}

// startsAfter is how long after the others a worker begins. Workers that share no bucket
// would call in step for ever, all at once and then none. So each begins where its even pace
// falls between those of the others.
func (o *order) startsAfter() time.Duration {
	if o.Mode != share {
		return 0
	}
	return time.Duration(float64(o.Index) / o.Rate * float64(time.Second))
}

// stop lets no new call begin, and waits for those that have left, so that worker and API
// agree on how many there were.
func (w *worker) stop() {
	close(w.stopped)
	if w.queue != nil {
		w.queue.Close() // it never fails
	}
}

// take returns what there is to report.
func (w *worker) take() report {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.next
	if w.scripts != nil {
		r.Commands = int(w.scripts.Swap(0))
	}
	w.next = report{}
	return r
}

// wait is one of the goroutines that call, one call after the other.
func (w *worker) wait(ctx context.Context, i uint64) {
	random := rand.New(rand.NewPCG(w.Seed, uint64(w.Index+1)<<32|i))
	for {
		begun := time.Now()
		if !w.untilAnswered(ctx, random) {
			return
		}
		took := time.Since(begun)
		w.mu.Lock()
		w.next.Answered++
		w.next.Waits = append(w.next.Waits, took.Microseconds())
		w.mu.Unlock()
	}
}

// untilAnswered makes a call until the API answers it, and returns false if the order to stop
// comes before.
func (w *worker) untilAnswered(ctx context.Context, random *rand.Rand) bool {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		after, refused, err := w.call(ctx)
		switch {
		case errors.Is(err, queue.ErrClosed):
			return false
		case err != nil:
			w.fail(err)
		case !refused:
			return true
		default:
			w.mu.Lock()
			w.next.Refused++
			w.mu.Unlock()
			if w.queue != nil {
				continue // the bucket knows of the refusal: the queue waits
			}
		}
		if !w.sleep(after + time.Duration(random.Int64N(int64(pause)))) {
			return false
		}
	}
}

// fail notes a failure.
func (w *worker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next.Failed++
	w.next.Error = cmp.Or(w.next.Error, err.Error())
}

// call makes one call. If the API has refused it, after is how long it asked to wait.
func (w *worker) call(ctx context.Context) (after time.Duration, refused bool, err error) {
	select {
	case <-w.stopped:
		return 0, false, queue.ErrClosed
	default:
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.API, nil)
	if err != nil {
		return 0, false, withoutURL(err)
	}
	req.Header.Set("X-Worker", workerName(w.Index))
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, false, withoutURL(err)
	}
	defer resp.Body.Close()
	// Read to its end, so that the next call can use the connection.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, false, err
	}
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		if n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
			after = time.Duration(n) * time.Second
		}
		return after, true, nil
	case resp.StatusCode >= 400:
		return 0, false, fmt.Errorf("the API answers %s", resp.Status)
	}
	return 0, false, nil
}

// sleep returns false if the order to stop comes meanwhile.
func (w *worker) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.stopped:
		return false
	}
}

// workerName is the name of a worker in X-Worker and in the result.
func workerName(index int) string { return "worker-" + strconv.Itoa(index+1) }

// withoutURL removes the URL from an error, because it may carry a token.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
