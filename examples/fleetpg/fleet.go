package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// result is what the workers have told, and what the API has counted.
type result struct {
	answered, failed, refused int
	trips                     int64
	shares                    []float64
	waits                     []time.Duration
	why                       string // of a call that failed
}

// fleet are the workers.
type fleet struct {
	params
	order order
	api   *outboundtest.API

	mu     sync.Mutex // protects the fields below
	result result
	wait   *sync.Cond // tells of reports
	ready  int
	ended  error // why the run ends before its time
}

// worker is the process of one.
type worker struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	done   chan struct{}
	killed atomic.Bool // by this process
}

// tryFleet runs the workers, and shows how they fare.
func tryFleet(ctx context.Context, p params, db string, stdout io.Writer) (*result, error) {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &fleet{params: p, api: &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.LeakyBucket(p.Burst+p.Rate*0.010+0.25, p.Rate)}}}
	f.wait = sync.NewCond(&f.mu)
	defer context.AfterFunc(ctx, func() { f.end(errors.New("interrupted")) })()
	f.result.shares = make([]float64, p.Workers)
	server := &http.Server{Handler: f.api, ReadHeaderTimeout: time.Minute}
	go server.Serve(listen) // until Close; its error only says so
	defer server.Close()
	f.order = order{Waiters: p.Waiters, Rate: p.Rate, Burst: p.Burst, API: "http://" + listen.Addr().String() + "/", DB: db, Bucket: bucketKey()}

	workers := make([]*worker, p.Workers)
	defer func() {
		for _, w := range workers {
			if w != nil {
				w.kill()
			}
		}
	}()
	for i := range workers {
		if workers[i], err = f.start(i); err != nil {
			return nil, err
		}
	}
	if err := f.await(p.Workers); err != nil {
		return nil, err
	}
	for _, w := range workers {
		fmt.Fprintln(w.stdin, "go") // a worker that has ended tells so elsewhere
	}
	begun := time.Now()
	until := begun.Add(time.Duration(p.Seconds * float64(time.Second)))
	screen := newScreen(stdout)
	fmt.Fprint(stdout, f.intro())
	kills := 0
	for time.Now().Before(until) {
		if kills < p.Kill && time.Since(begun).Seconds() > p.Seconds*float64(kills+1)/float64(p.Kill+1) {
			kills++
			i := rand.IntN(len(workers))
			workers[i].kill()
			if workers[i], err = f.start(i); err != nil {
				return nil, err
			}
			if err := f.await(p.Workers + kills); err != nil {
				return nil, err
			}
			fmt.Fprintln(workers[i].stdin, "go")
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(screen.every, time.Until(until))):
		}
		if err := f.await(0); err != nil {
			return nil, err
		}
		screen.draw(f.table(time.Since(begun)))
	}
	took := time.Since(begun)
	for _, w := range workers {
		_ = w.stdin.Close()
	}
	for _, w := range workers {
		select {
		case <-w.done:
		case <-time.After(10 * time.Second):
			return nil, errors.New("a worker does not end")
		}
	}
	screen.end(f.table(took))
	f.mu.Lock()
	defer f.mu.Unlock()
	return &f.result, nil
}

// start starts a worker.
func (f *fleet) start(i int) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := f.order
	o.Index = i
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var said bytes.Buffer
	w.cmd.Stderr = &said
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.done)
		lines := json.NewDecoder(out)
		for {
			var r report
			if lines.Decode(&r) != nil { // the end, or half a line of a worker that was killed
				break
			}
			f.hear(i, r)
		}
		if err := w.cmd.Wait(); err != nil && !w.killed.Load() {
			f.end(fmt.Errorf("worker %d has ended: %w %s", i, err, strings.TrimSpace(said.String())))
		}
	}()
	return w, nil
}

// kill ends a worker at once.
func (w *worker) kill() {
	w.killed.Store(true)
	_ = w.cmd.Process.Kill() // it may have ended already
	<-w.done
}

// hear takes in a report.
func (f *fleet) hear(i int, r report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Ready {
		f.ready++
		f.wait.Broadcast()
		return
	}
	f.result.answered += r.Answered
	f.result.failed += r.Failed
	f.result.trips += r.Trips
	f.result.shares[i] += float64(r.Answered)
	f.result.waits = append(f.result.waits, r.Waits...)
	if r.Error != "" {
		f.result.why = r.Error
	}
}

// end ends the run because of an error, of which the first counts.
func (f *fleet) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = cmp.Or(f.ended, err)
	f.wait.Broadcast()
}

// await returns once so many workers have been ready, or the error that ends the run.
func (f *fleet) await(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ready < n && f.ended == nil {
		f.wait.Wait()
	}
	return f.ended
}

func (f *fleet) intro() string {
	return fmt.Sprintf(`%s

%d processes with %d callers each call as fast as they
may, for %v s, under a limit of %v/s with bursts of %v.

quota:   what was used of burst + rate * seconds
refused: by the API, with 429
Jain:    fairness, 1 if all got the same, 1/N if one got all
wait:    until a call is answered
trips:   queries of PostgreSQL for each call to the API

`, strings.SplitN(usage, "\n", 2)[0], f.Workers, f.Waiters, f.Seconds, f.Rate, f.Burst)
}

// table shows the result so far.
func (f *fleet) table(took time.Duration) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.result
	r.refused = f.api.Report().Refused
	waits := slices.Sorted(slices.Values(r.waits))
	at := func(q float64) float64 {
		if len(waits) == 0 {
			return 0
		}
		return waits[int(q*float64(len(waits)-1))].Seconds()
	}
	return []string{
		fmt.Sprintf("%5s %8s %7s %6s %4s %11s %5s", "quota", "answered", "refused", "failed", "Jain", "wait, s", "trips"),
		fmt.Sprintf("%5s %8s %7s %6s %4s %5s %5s", "%", "", "", "", "", "p50", "p99"),
		fmt.Sprintf("%5.1f %8d %7d %6d %4.2f %5.2f %5.2f %5.2f", 100*float64(r.answered)/(f.Burst+f.Rate*took.Seconds()),
			r.answered, r.refused, r.failed, jain(r.shares), at(0.5), at(0.99), float64(r.trips)/float64(max(1, r.answered))),
	}
}

// jain returns Jain's index of fairness.
func jain(shares []float64) float64 {
	sum, squares := 0., 0.
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// screen is where the table is drawn: on a terminal again and again in one place, and else a line
// a second, and the table at the end.
type screen struct {
	out   io.Writer
	live  bool
	every time.Duration
	drawn int // lines
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out, every: time.Second}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" {
			s.live, s.every = true, 200*time.Millisecond
		}
	}
	return s
}

func (s *screen) draw(lines []string) {
	if !s.live {
		fmt.Fprintln(s.out, lines[len(lines)-1])
		return
	}
	s.end(lines)
	s.drawn = len(lines)
}

func (s *screen) end(lines []string) {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\r\x1b[J", s.drawn)
	} else if !s.live {
		fmt.Fprintln(s.out)
	}
	fmt.Fprintln(s.out, strings.Join(lines, "\n"))
}
