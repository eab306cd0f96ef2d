package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/queue"
)

// A fleet is ten stores, each behind a line of its own, on one key of one redis-server. A queue of
// each has more callers than the limit lets go.
type fleet struct {
	Window     bool // Window(Rate, time.Second) in place of a leaky limit
	Rate       float64
	RoundTrips []time.Duration // the workers have them in turn
	Warm, Took time.Duration
}

const workersOfAFleet = 10

func (f fleet) String() string {
	kind := "leaky"
	if f.Window {
		kind = "window"
	}
	text := fmt.Sprintf("%s, %g/s, %v", kind, f.Rate, f.RoundTrips[0])
	for _, d := range f.RoundTrips[1:] {
		text += " and " + d.String()
	}
	return text
}

func (f fleet) limit() outbound.Limit {
	if f.Window {
		return outbound.Window(f.Rate, time.Second)
	}
	return outbound.Limit{Capacity: max(1, f.Rate/50), LeakRate: f.Rate}
}

// fleets are those that -fleets measures.
func fleets(took time.Duration) (all []fleet) {
	const ms = time.Millisecond
	for _, window := range []bool{false, true} {
		for _, rate := range []float64{50, 400, 1000, 5000} {
			for _, trips := range [][]time.Duration{{ms / 5}, {ms}, {5 * ms}, {20 * ms}, {2 * ms, 20 * ms}} {
				f := fleet{window, rate, trips, time.Second, took}
				if window {
					f.Warm = 0 // it is full immediately
				}
				all = append(all, f)
			}
		}
	}
	return all
}

// An api counts the calls of a fleet as a strict server does. A call counts when it leaves, with
// 10 ms for what the machine delays.
type api struct {
	mu      sync.Mutex
	limit   outbound.Limit
	window  bool
	level   float64
	at      time.Time
	left    []time.Time // of a window, the last that it has admitted
	first   time.Time
	refused int
}

const grace = 10 * time.Millisecond

func (a *api) call() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.first.IsZero() {
		a.first = now
	}
	if a.window {
		n := int(a.limit.Capacity)
		if len(a.left) == n {
			if now.Sub(a.left[0]) < time.Second {
				a.refused++
				return
			}
			a.left = a.left[1:]
		}
		a.left, a.at = append(a.left, now), now
		return
	}
	a.level = max(0, a.level-a.limit.LeakRate*now.Sub(a.at).Seconds())
	if a.at = now; a.level+1 > a.limit.Capacity+a.limit.LeakRate*grace.Seconds()+0.25 {
		a.refused++
		return
	}
	a.level++
}

// What the columns of a fleet's table show.
const (
	fleetUse = iota // of what the limit admits, in percent; of a window n per window and 10 ms
	fleetFair
	fleetTrips
	fleetCPU // of the server, µs a call
	fleetRefused
	fleetFailed
	fleetColumns
)

// digits are those after the point, by column.
var digits = [fleetColumns]int{1, 3, 3, 0, 0, 0}

// run measures the fleet on a server.
func (f fleet) run(s *server) (sample, error) {
	direct, err := s.empty()
	if err != nil {
		return sample{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	strict := &api{limit: f.limit(), window: f.Window, at: time.Now()}
	callers := int(max(20, f.Rate/50))
	if f.Rate < 100 {
		callers = 2
	}
	var running sync.WaitGroup
	var counting atomic.Bool
	var failed atomic.Int64
	counts := make([]atomic.Int64, workersOfAFleet)
	stores := make([]*redisstore.Store, workersOfAFleet)
	for i := range stores {
		address, stop, err := delayed(direct.Options().Addr, f.RoundTrips[i%len(f.RoundTrips)]/2)
		if err != nil {
			return sample{}, err
		}
		defer stop()
		rdb := redis.NewClient(&redis.Options{Addr: address})
		defer rdb.Close()
		stores[i] = redisstore.New(rdb, redisstore.Config{})
		b, err := outbound.NewSharedBucket(stores[i], "fleet", f.limit())
		if err != nil {
			return sample{}, err
		}
		q := queue.New(b, queue.Config{})
		for range callers {
			running.Go(func() {
				for ctx.Err() == nil {
					p, err := q.Acquire(ctx, one)
					if err != nil {
						if ctx.Err() == nil && counting.Load() {
							failed.Add(1)
						}
						continue
					}
					strict.call()
					p.Done()
					if counting.Load() {
						counts[i].Add(1)
					}
				}
			})
		}
	}
	trips := func() (n uint64) {
		for _, s := range stores {
			n += s.Stats().Requests.Count
		}
		return n
	}
	time.Sleep(f.Warm)
	busy, err := s.usage("")
	if err != nil {
		return sample{}, err
	}
	begin, sent := time.Now(), trips()
	counting.Store(true)
	time.Sleep(f.Took)
	counting.Store(false)
	took := time.Since(begin)
	sent = trips() - sent
	end, err := s.usage("")
	cancel()
	running.Wait()
	if err != nil {
		return sample{}, err
	}

	sum, squares := 0., 0.
	for i := range counts {
		n := float64(counts[i].Load())
		sum, squares = sum+n, squares+n*n
	}
	v := make([]float64, fleetColumns)
	v[fleetUse] = 100 * sum / (f.Rate * took.Seconds())
	if f.Window { // from the first to the last call, which begin and end windows
		windows := strict.at.Sub(strict.first).Seconds() / (1 + grace.Seconds())
		v[fleetUse] = 100 * (sum - f.Rate) / (f.Rate * windows)
	}
	v[fleetFair] = sum * sum / max(1, squares) / workersOfAFleet
	v[fleetTrips] = float64(sent) / max(1, sum)
	v[fleetCPU] = (end.all - busy.all) / max(1, sum)
	v[fleetRefused] = float64(strict.refused)
	v[fleetFailed] = float64(failed.Load())
	return sample{Values: v}, nil
}

// measureFleets measures the fleets that only matches, in turns with another tree if there is one,
// and prints a table of medians.
func measureFleets(w, progress io.Writer, o options, took time.Duration, only *regexp.Regexp) error {
	if err := missing(); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	names, programs := []string{"this"}, []string{self}
	if o.Against != "" {
		names, programs = append(names, "other"), append(programs, filepath.Join(tmp, "other"))
		if err := build(context.Background(), o.Against, programs[1]); err != nil {
			return err
		}
	}
	writeMachine(w, o)
	fmt.Fprintln(w, "| limit, rate, round trip | tree | used, % | Jain | requests a call | server, µs a call | refused by the API | failed |")
	fmt.Fprintln(w, "|---|---|--:|--:|--:|--:|--:|--:|")
	measured := 0
	for _, f := range fleets(took) {
		if !only.MatchString("fleet/" + f.String()) {
			continue
		}
		measured++
		got := make([][][]float64, len(programs)) // by program, column, round
		for i := range got {
			got[i] = make([][]float64, fleetColumns)
		}
		for round := range o.Rounds {
			fmt.Fprintf(progress, "round %d: fleet/%v\n", round+1, f)
			for i, program := range programs {
				s, err := errand{Options: o, Fleet: &f}.in(context.Background(), program)
				if err != nil {
					return fmt.Errorf("%v: %w", f, err)
				}
				for column, v := range s.Values {
					got[i][column] = append(got[i][column], v)
				}
			}
		}
		for i, columns := range got {
			fmt.Fprintf(w, "| %v | %s |", f, names[i])
			for column, values := range columns {
				slices.Sort(values)
				fmt.Fprintf(w, " %.*f |", digits[column], median(values))
			}
			fmt.Fprintln(w)
		}
	}
	if measured == 0 {
		return errors.New("-only matches no fleet")
	}
	return nil
}
