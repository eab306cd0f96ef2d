package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/riverqueue/river"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
)

// result counts jobs, and the calls that the API has refused.
type result struct {
	done, waiting, running, failed, refused int
	runs                                    float64 // of each job that calls the API
	others                                  int
	wait                                    float64 // p95 of the other jobs, in seconds
}

// fleet are the workers.
type fleet struct {
	order
	db      *pgserver.Database
	api     *outboundtest.API
	workers []*worker
}

// worker is a worker process.
type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	errs  bytes.Buffer // what it prints
}

// tryFleet runs the workers, and shows each second what they have done.
func tryFleet(ctx context.Context, p params, db *pgserver.Database, stdout io.Writer) (*result, error) {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &fleet{db: db, api: &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(max(1, p.Rate), time.Second)}}}
	f.order = order{params: p, API: "http://" + listen.Addr().String() + "/", DB: db.URL, Schema: db.Schema}
	server := &http.Server{Handler: f.api, ReadHeaderTimeout: time.Minute}
	go server.Serve(listen) // until Close, and returns that as its error
	defer server.Close()
	defer func() {
		for _, w := range f.workers {
			w.kill()
		}
	}()
	for range p.Processes {
		if err := f.start(); err != nil {
			return nil, err
		}
	}
	fmt.Fprint(stdout, f.intro())
	begun := time.Now()
	if err := f.insert(ctx); err != nil {
		return nil, err
	}
	for tick := time.NewTicker(time.Second); ; {
		r, err := f.look(ctx)
		if err != nil {
			return nil, err
		}
		fmt.Fprintln(stdout, r.line(time.Since(begun)))
		if r.done+r.failed >= p.Jobs && r.others == p.Others {
			fmt.Fprintf(stdout, "\n%.2f runs a job; the rate alone takes %.1f s\n", r.runs, float64(p.Jobs-1)/p.Rate)
			return r, f.stop()
		}
		if p.kill && r.done > p.Jobs/4 {
			p.kill = false
			f.workers[0].kill()
			if err := f.start(); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.New("interrupted")
		case <-tick.C:
		}
	}
}

// start starts a worker.
func (f *fleet) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(f.order)
	if err != nil {
		return err
	}
	w := &worker{cmd: exec.Command(self)}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	w.cmd.Stderr = &w.errs
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	f.workers = append(f.workers, w)
	return nil
}

// kill kills a worker.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may have ended already
	_ = w.cmd.Wait()
}

// stop stops the workers as a program does.
func (f *fleet) stop() error {
	for _, w := range f.workers {
		_ = w.stdin.Close()
	}
	for _, w := range f.workers {
		if w.cmd.ProcessState != nil { // it was killed
			continue
		}
		if err := w.cmd.Wait(); err != nil {
			return fmt.Errorf("a worker: %w: %s", err, strings.TrimSpace(w.errs.String()))
		}
	}
	return nil
}

// insert inserts all jobs.
func (f *fleet) insert(ctx context.Context) error {
	client, _, err := newClient(f.db, &f.order)
	if err != nil {
		return err
	}
	jobs := make([]river.InsertManyParams, 0, f.Jobs+f.Others)
	for i := range f.Jobs {
		jobs = append(jobs, river.InsertManyParams{Args: weather{i}})
	}
	for i := range f.Others {
		jobs = append(jobs, river.InsertManyParams{Args: other{i}})
	}
	_, err = client.InsertMany(ctx, jobs)
	return err
}

// look reads from River's table how the jobs have ended.
func (f *fleet) look(ctx context.Context) (*result, error) {
	r := &result{refused: f.api.Report().Refused}
	err := f.db.Pool.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE kind = 'weather' AND state = 'completed'),
			count(*) FILTER (WHERE kind = 'weather' AND state IN ('available', 'scheduled', 'retryable')),
			count(*) FILTER (WHERE kind = 'weather' AND state = 'running'),
			count(*) FILTER (WHERE state IN ('cancelled', 'discarded')),
			coalesce(avg(attempt + coalesce((metadata->>'snoozes')::int, 0)) FILTER (WHERE kind = 'weather'), 0),
			count(*) FILTER (WHERE kind = 'other' AND state = 'completed'),
			coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM attempted_at - scheduled_at)) FILTER (WHERE kind = 'other'), 0)
		FROM `+f.Schema+".river_job").Scan(&r.done, &r.waiting, &r.running, &r.failed, &r.runs, &r.others, &r.wait)
	return r, err
}

func (f *fleet) intro() string {
	return fmt.Sprintf(`%s

%d processes work %d jobs, %d at a time each, that call an
API under a limit of %v/s, and %d jobs without a call.

done:    jobs that have called the API
worker:  jobs that are in a worker, most of them to wait
waits:   jobs that wait in River
refused: by the API, with 429
failed:  jobs that are cancelled or discarded
others:  jobs without a call, and how long 95 %% of them
         waited for a worker at most

%6s %6s %6s %6s %8s %6s %12s
`, strings.SplitN(usage, "\n", 2)[0], f.Processes, f.Jobs, f.Workers, f.Rate, f.Others,
		"time", "done", "worker", "waits", "refused", "failed", "others")
}

func (r *result) line(took time.Duration) string {
	return fmt.Sprintf("%4.0f s %6d %6d %6d %8d %6d %5d %4.2f s", took.Seconds(), r.done, r.running, r.waiting, r.refused, r.failed, r.others, r.wait)
}
