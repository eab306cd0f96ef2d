package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// job is some calls to make, by some workers with one client.
type job struct {
	name           string
	method, url    string
	client         *http.Client
	api            *moody // nil: the server is somebody else's
	calls, workers int

	made  atomic.Int64
	mu    sync.Mutex // protects the fields below
	good  int
	bad   int
	first error // why a call was lost
	took  time.Duration
}

// run makes the calls.
func (j *job) run(ctx context.Context) {
	start := time.Now()
	var all sync.WaitGroup
	for range j.workers {
		all.Go(func() {
			for n := j.made.Add(1); n <= int64(j.calls) && ctx.Err() == nil; n = j.made.Add(1) {
				j.note(j.call(ctx, n))
			}
		})
	}
	all.Wait()
	j.took = time.Since(start)
}

// call makes one call.
func (j *job) call(ctx context.Context, n int64) error {
	var body io.Reader
	if j.method == http.MethodPost {
		body = strings.NewReader("amount=2000")
	}
	req, err := http.NewRequestWithContext(ctx, j.method, j.url, body)
	if err != nil {
		return err
	}
	if j.method == http.MethodPost {
		// The key makes a POST safe to send again, for the API and so for the client.
		req.Header.Set("Idempotency-Key", "order-"+strconv.FormatInt(n, 10))
	}
	resp, err := j.client.Do(req)
	if outer, ok := errors.AsType[*url.Error](err); ok {
		return outer.Err // without the URL, which may have a key in its query
	} else if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		return errors.New("status " + strconv.Itoa(resp.StatusCode))
	}
	return nil
}

func (j *job) note(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.good++
		return
	}
	j.bad++
	if j.first == nil {
		j.first = err
	}
}

// together runs the jobs at the same time, and prints what became of them.
func together(ctx context.Context, jobs []*job, out io.Writer) error {
	fmt.Fprintf(out, "%s\n%d calls by %d workers.\n\n", shows, jobs[0].calls, jobs[0].workers)
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Go(func() { j.run(ctx) })
	}
	all.Wait()

	fmt.Fprintf(out, "%-15s %8s %4s %8s %7s %6s %5s\n", "", "answered", "lost", "attempts", "refused", "failed", "sec")
	for _, j := range jobs {
		line := fmt.Sprintf("%-15s %8d %4d", j.name, j.good, j.bad)
		if j.api != nil {
			calls, refused, failed := j.api.counts()
			line += fmt.Sprintf(" %8d %7d %6d", calls, refused, failed)
		} else {
			line += fmt.Sprintf(" %8s %7s %6s", "?", "?", "?")
		}
		fmt.Fprintf(out, "%s %5.1f\n", line, j.took.Seconds())
	}
	for _, j := range jobs {
		if j.first != nil {
			fmt.Fprintf(out, "\n%s has lost %d, the first with:\n%v\n", j.name, j.bad, j.first)
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if last := jobs[len(jobs)-1]; last.good == 0 {
		return errors.New("not one call was answered")
	}
	return nil
}
