package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// trial is one of the ways, tried for a while.
type trial struct {
	params
	order   order // for all workers, except the index
	api     *ownAPI
	redis   *server // nil: this way needs none
	slots   []*slot
	trouble chan error // the first error, which ends the trial

	mu     sync.Mutex // protects what is below, and what the slots count
	began  time.Time
	took   time.Duration // 0: it has not ended
	within int           // calls that our own API has admitted in that time
	waits  histogram
	kills  []kill
	// The scripts that the server has run, or that the workers have asked for.
	served, sent int
	counted      bool // the server has counted them
}

// slot is a place in the fleet. If its worker is killed, another takes the place.
type slot struct {
	tally tally
	ready chan struct{}
	done  bool // the worker has said so

	mu      sync.Mutex // serialises starting, killing and telling
	process *process
}

// kill is the end of a worker that was killed.
type kill struct {
	At     float64 `json:"at_seconds"`
	Worker string  `json:"worker"`
}

var (
	errTooEarly    = errors.New("nobody has told it to")
	errInterrupted = errors.New("interrupted")
)

const (
	startPatience = 60 * time.Second
	endPatience   = lastCalls + 5*time.Second
)

func newTrial(p params, o order, api *ownAPI, redis *server) *trial {
	t := &trial{params: p, order: o, api: api, redis: redis, trouble: make(chan error, 1)}
	for i := range p.Workers {
		t.slots = append(t.slots, &slot{tally: tally{Name: workerName(i)}})
	}
	return t
}

// run starts the workers, lets them call, and ends them, whatever happens. It calls show
// every so often.
func (t *trial) run(ctx context.Context, show func(), every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer t.killAll()
	if err := t.start(ctx); err != nil {
		return err
	}
	before, countable := t.commands(ctx)
	if err := t.call(ctx, show, every); err != nil {
		return err
	}
	if err := t.stop(ctx); err != nil {
		return err
	}
	after, ok := t.commands(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.served, t.counted = after-before, countable && ok
	return nil
}

func (t *trial) commands(ctx context.Context) (int, bool) {
	if t.redis == nil {
		return 0, false
	}
	return t.redis.commands(ctx)
}

// start returns when all workers are ready to call.
func (t *trial) start(ctx context.Context) error {
	for i := range t.slots {
		if err := t.startSlot(i); err != nil {
			return err
		}
	}
	timeout := time.After(startPatience)
	for i, s := range t.slots {
		select {
		case <-s.ready:
		case err := <-t.trouble:
			return err
		case <-ctx.Done():
			return errInterrupted
		case <-timeout:
			return fmt.Errorf("%s was not ready after %v", workerName(i), startPatience)
		}
	}
	return nil
}

// startSlot starts a worker. The caller holds the slot's lock, or the trial has not begun.
func (t *trial) startSlot(i int) error {
	s := t.slots[i]
	o := t.order
	o.Index = i
	ready := make(chan struct{})
	p, err := startWorker(o, func(r report) { t.hear(s, ready, r) })
	if err != nil {
		return fmt.Errorf("%s cannot be started: %w", workerName(i), err)
	}
	s.process, s.ready = p, ready
	go t.watch(i, p)
	return nil
}

// watch ends the trial if a worker ends by itself.
func (t *trial) watch(i int, p *process) {
	<-p.done
	s := t.slots[i]
	s.mu.Lock()
	killed := s.process != p
	s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case killed || s.done:
	case s.tally.Error != "":
		t.giveUp(fmt.Errorf("%s has ended: %s", s.tally.Name, s.tally.Error))
	default:
		t.giveUp(fmt.Errorf("%s has ended: %w", s.tally.Name, cmp.Or(p.err, errTooEarly)))
	}
}

func (t *trial) giveUp(err error) {
	select {
	case t.trouble <- err:
	default: // the first one counts
	}
}

// hear adds a worker's report to the results.
func (t *trial) hear(s *slot, ready chan struct{}, r report) {
	if r.Ready {
		close(ready)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.tally.add(r)
	s.done = s.done || r.Done
	t.sent += r.Commands
	for _, us := range r.Waits {
		t.waits.add(time.Duration(us) * time.Microsecond)
	}
}

// call lets the workers call until the time is up.
func (t *trial) call(ctx context.Context, show func(), every time.Duration) error {
	for i := range t.slots {
		if err := t.tell(i, wordGo); err != nil {
			return err
		}
	}
	t.mu.Lock()
	t.began = time.Now()
	t.mu.Unlock()
	calling, cancel := context.WithTimeout(ctx, t.duration())
	var killer sync.WaitGroup
	killer.Go(func() { t.killSome(calling) })
	defer killer.Wait()
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			show()
		case err := <-t.trouble:
			return err
		case <-calling.Done():
			if ctx.Err() != nil {
				return errInterrupted
			}
			t.end()
			return nil
		}
	}
}

// end notes what was done in the time. Calls that are still under way come too late for it.
func (t *trial) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = time.Since(t.began)
	if t.api != nil {
		t.within = t.api.Report().Admitted
	}
}

func (t *trial) tell(i int, word string) error {
	s := t.slots[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.process.tell(word); err != nil {
		return fmt.Errorf("%s does not listen: %w", workerName(i), err)
	}
	return nil
}

// killSome kills as many workers as the flag says, at random moments of the middle of the
// trial, and starts another in the place of each at once.
func (t *trial) killSome(calling context.Context) {
	random := rand.New(rand.NewPCG(t.order.Seed, 0))
	moments := make([]float64, t.Kill)
	for i := range moments {
		moments[i] = 0.1 + 0.8*random.Float64()
	}
	slices.Sort(moments)
	for _, at := range moments {
		i := random.IntN(len(t.slots))
		select {
		case <-time.After(time.Until(t.began.Add(time.Duration(at * float64(t.duration()))))):
			if err := t.replace(calling, i); err != nil {
				t.giveUp(err)
				return
			}
		case <-calling.Done():
			return
		}
	}
}

// replace kills a worker and starts another one in its place.
func (t *trial) replace(calling context.Context, i int) error {
	s := t.slots[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.process
	s.process = nil
	old.kill()
	t.mu.Lock()
	t.kills = append(t.kills, kill{At: time.Since(t.began).Seconds(), Worker: s.tally.Name})
	s.tally.Killed++
	t.mu.Unlock()
	if err := t.startSlot(i); err != nil {
		return err
	}
	select {
	case <-s.ready:
		return s.process.tell(wordGo)
	case <-s.process.done:
		return nil // watch tells why
	case <-calling.Done():
		// The new worker must go all the same, so that it knows what stop means.
		return s.process.tell(wordGo)
	}
}

// stop returns when all workers have ended.
func (t *trial) stop(ctx context.Context) error {
	for i := range t.slots {
		if err := t.tell(i, wordStop); err != nil {
			return err
		}
	}
	timeout := time.After(endPatience)
	for i, s := range t.slots {
		select {
		case <-s.process.done:
		case err := <-t.trouble:
			return err
		case <-ctx.Done():
			return errInterrupted
		case <-timeout:
			return fmt.Errorf("%s has not ended after %v", workerName(i), endPatience)
		}
	}
	select {
	case err := <-t.trouble:
		return err
	default:
		return nil
	}
}

// killAll ends the workers that are left.
func (t *trial) killAll() {
	for _, s := range t.slots {
		s.mu.Lock()
		if p := s.process; p != nil {
			s.process = nil
			p.kill()
		}
		s.mu.Unlock()
	}
}
