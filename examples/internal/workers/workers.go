// Package workers runs processes that call a strict API as fast as its limit allows, and shows how
// much of the quota they use. The processes are copies of the program: see [Work].
package workers

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/screen"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// Fleet is how many workers call, how fast and for how long.
type Fleet struct {
	Workers, Waiters, Kill int
	Rate, Burst, Seconds   float64
}

// Flags adds flags for the fields.
func (f *Fleet) Flags(flags *flag.FlagSet) {
	*f = Fleet{Workers: 10, Waiters: 2, Rate: 50, Burst: 1, Seconds: 10}
	cli.Number(flags, &f.Workers, "workers", 1, 1000, "worker processes")
	cli.Number(flags, &f.Waiters, "waiters", 1, 1000, "callers of a worker")
	cli.Number(flags, &f.Rate, "rate", 0.01, 10_000, "calls per second")
	cli.Number(flags, &f.Burst, "burst", 1, 10_000, "calls in one burst")
	cli.Number(flags, &f.Seconds, "seconds", 0.5, 3600, "how long")
	cli.Number(flags, &f.Kill, "kill", 0, 1000, "kill a worker\n(kill -9) and start it again, N times")
}

// Limit is the limit that the workers keep to.
func (f *Fleet) Limit() outbound.Limit {
	return outbound.Limit{Capacity: f.Burst, LeakRate: f.Rate}
}

// APILimit says what the API admits. It is a little more than the workers' limit, because calls
// that leave on time may arrive early or late. A bucket of one call would refuse some of them.
const APILimit = `The limit: outbound.Limit{Capacity: burst, LeakRate: rate}
The program serves a strict API, a leaky bucket with
capacity burst + rate * 10 ms + 0.25 that leaks rate per
second, and refuses with 429 what does not fit.`

func (f *Fleet) api(next http.HandlerFunc) *outboundtest.API {
	return &outboundtest.API{Next: next, Rules: []outboundtest.Rule{outboundtest.LeakyBucket(f.Burst+f.Rate*0.010+0.25, f.Rate)}}
}

const (
	readyPath = "ready"                        // answers when all workers can begin
	query     = "?worker=%d&began=%d&trips=%d" // of a call
)

// run is one way that is being tried.
type run struct {
	order   Order
	api     *outboundtest.API
	ready   chan struct{} // gets one for each worker that can begin
	begin   chan struct{} // closed when they may
	trouble chan error    // the first error, which ends the run
	workers []*process

	mu     sync.Mutex // protects the field below
	result Result
}

// newRun returns a run without workers.
func (f *Fleet) newRun(o Order) *run {
	o.Fleet = *f
	o.Bucket = fmt.Sprintf("fleet:%d:%d", time.Now().UnixNano(), rand.Uint32()) // no run before has used it
	r := &run{order: o, ready: make(chan struct{}, f.Workers), begin: make(chan struct{}), trouble: make(chan error, 1)}
	r.api = f.api(r.admitted)
	r.result = Result{Way: o.Way, fleet: f, by: make([]float64, f.Workers), waits: map[int]int{}}
	return r
}

// ServeHTTP serves the API.
func (r *run) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != "/"+readyPath {
		r.api.ServeHTTP(w, req)
		return
	}
	select {
	case r.ready <- struct{}{}:
	default: // a worker that replaces a killed one
	}
	select {
	case <-r.begin:
	case <-req.Context().Done():
	}
}

// admitted notes a call that the API has admitted.
func (r *run) admitted(_ http.ResponseWriter, req *http.Request) {
	var worker int
	var began, trips int64
	_, _ = fmt.Sscanf("?"+req.URL.RawQuery, query, &worker, &began, &trips) // a worker has written it
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.add(worker, time.Since(time.Unix(0, began)), trips)
}

// String says what the workers do, and explains the table of the results.
func (f *Fleet) String() string {
	return fmt.Sprintf(`%d processes with %d callers each call as fast as they
may, for %v s in each way.

quota:   what was used of burst + rate * seconds
refused: by the API, with 429
Jain:    fairness, 1 if all got the same, 1/N if one got all
wait:    until a call is answered, retries included
trips:   requests to the store for each call to the API
`, f.Workers, f.Waiters, f.Seconds)
}

// TryAll tries one way after the other, and prints a table of the results.
func (f *Fleet) TryAll(ctx context.Context, out io.Writer, o Order, ways ...string) (results []*Result, err error) {
	for _, way := range ways {
		o.Way, o.Apart = way, way == "share"
		var r *Result
		if r, err = f.try(ctx, out, o, results); r != nil {
			results = append(results, r)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", way, err)
			break
		}
	}
	fmt.Fprintf(out, "\n%s\n", strings.Join(table(results), "\n"))
	for _, r := range results {
		if r.Said != "" {
			fmt.Fprintf(out, "\n%s: a worker says: %s\n", r.Way, r.Said)
		}
		if r.Answered == 0 && err == nil {
			err = fmt.Errorf("%s: no call was answered", r.Way)
		}
	}
	return results, err
}

// try tries one way, and shows how the workers fare, in a terminal below the results before.
func (f *Fleet) try(ctx context.Context, out io.Writer, o Order, before []*Result) (*Result, error) {
	r := f.newRun(o)
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r.order.API = "http://" + listen.Addr().String() + "/"
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go server.Serve(listen) // until Close, and returns that as its error
	defer server.Close()
	defer func() {
		for _, w := range r.workers {
			w.kill()
		}
	}()
	r.workers = make([]*process, f.Workers)
	for i := range r.workers {
		if err := r.start(i); err != nil {
			return nil, err
		}
	}
	for range r.workers {
		select {
		case <-r.ready:
		case err := <-r.trouble:
			return nil, err
		case <-ctx.Done():
			return nil, errInterrupted
		case <-time.After(time.Minute):
			return nil, errors.New("a worker does not begin")
		}
	}
	r.result.began = time.Now()
	close(r.begin)
	err = r.watch(ctx, out, before)
	return r.look(), err
}

var errInterrupted = errors.New("interrupted")

// watch shows the calls until the time is over, and kills some workers meanwhile.
func (r *run) watch(ctx context.Context, out io.Writer, before []*Result) error {
	lasts := time.Duration(r.order.Seconds * float64(time.Second))
	end := time.After(lasts)
	kill := time.Tick(lasts / time.Duration(r.order.Kill+1))
	every, live := time.Second, screen.Screen{Out: out}
	if screen.Live(out) {
		every = 200 * time.Millisecond
	}
	draw := time.Tick(every)
	defer live.Clear()
	for kills := 0; ; {
		select {
		case <-end:
			return nil
		case err := <-r.trouble:
			return err
		case <-ctx.Done():
			return errInterrupted
		case <-kill:
			if kills++; kills <= r.order.Kill {
				i := rand.IntN(len(r.workers))
				r.workers[i].kill()
				if err := r.start(i); err != nil {
					return err
				}
			}
		case <-draw:
			if so := r.look(); screen.Live(out) {
				live.Draw(table(append(before, so))...)
			} else {
				fmt.Fprintln(out, so.line())
			}
		}
	}
}

// process is the process of a worker.
type process struct {
	cmd    *exec.Cmd
	killed atomic.Bool
	done   chan struct{} // closed when it has ended
}

// kill ends the process, if it was started, and returns when it has ended.
func (w *process) kill() {
	if w != nil {
		w.killed.Store(true)
		_ = w.cmd.Process.Kill() // it may have ended
		<-w.done
	}
}

// start starts a worker.
func (r *run) start(i int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := r.order
	o.Index = i
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	w := &process{cmd: exec.Command(self), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), orderEnv+"="+string(text))
	w.cmd.SysProcAttr = Child(syscall.SIGKILL)
	w.cmd.Stderr = r
	if _, err := w.cmd.StdinPipe(); err != nil { // stays open as long as this process
		return err
	}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	r.workers[i] = w
	go func() {
		err := w.cmd.Wait()
		if !w.killed.Load() {
			select {
			case r.trouble <- fmt.Errorf("worker %d has ended: %w: %s", i, err, r.look().Said):
			default: // the first one counts
			}
		}
		close(w.done)
	}()
	return nil
}

// Write keeps the first line that a worker writes to its standard error.
func (r *run) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result.Said == "" {
		r.result.Said = strings.TrimSpace(string(p))
	}
	return len(p), nil
}
