package jobs

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// job is a job of the simulated system.
type job struct {
	id, tenant int
	ticket     string
	due        time.Time // when it may run
	came       time.Time // when it was enqueued first
	reserved   time.Time // when its reservation was due, as it first learned
	began      time.Time // when the Scheduler admitted it
	runs       int
}

// world is a fleet of worker processes with a job system between them.
type world struct {
	rnd     *rand.Rand
	procs   int
	workers int           // of each process
	poll    time.Duration // how often a process looks for what is due
	work    time.Duration // that a job takes
	unseen  time.Duration // the longest time in which no process looks for what is due
	kill    time.Duration // after that the first process is dead; 0: it lives
	acquire func(ctx context.Context, proc int, j *job) (outbound.Permit, error)

	mu      sync.Mutex // protects what follows
	ready   []*job     // of asynq: those to run now, in order
	delayed jobHeap    // those to run later
	done    []*job     // in the order in which they began
	runs    int
	history outboundtest.History
	full    chan struct{} // closed when want jobs have begun
	want    int
}

type jobHeap []*job

func (h jobHeap) Len() int { return len(h) }
func (h jobHeap) Less(i, j int) bool {
	if c := h[i].due.Compare(h[j].due); c != 0 {
		return c < 0
	}
	return h[i].id < h[j].id
}
func (h jobHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *jobHeap) Push(x any)   { *h = append(*h, x.(*job)) }
func (h *jobHeap) Pop() any {
	last := len(*h) - 1
	j := (*h)[last]
	*h = (*h)[:last]
	return j
}

// random returns times at random for one goroutine. Each has a sequence of its own, or the Go scheduler
// would decide which one draws which.
func (w *world) random() func(from, to time.Duration) time.Duration {
	own := rand.New(rand.NewPCG(w.rnd.Uint64(), w.rnd.Uint64()))
	return func(from, to time.Duration) time.Duration { return from + time.Duration(own.Int64N(int64(to-from))) }
}

// phases draws when in a poll each process looks. It notes the longest time in which none does.
func (w *world) phases() (all []time.Duration) {
	draw := w.random()
	for range w.procs {
		all = append(all, draw(0, w.poll))
	}
	sorted := slices.Sorted(slices.Values(all))
	for i, p := range append(sorted[1:], sorted[0]+w.poll) {
		w.unseen = max(w.unseen, p-sorted[i])
	}
	return all
}

// put has a job run after that long.
func (w *world) put(j *job, in time.Duration) { w.putAt(j, time.Now().Add(in)) }

func (w *world) putAt(j *job, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	j.due = at
	heap.Push(&w.delayed, j)
}

// takeDue takes at most n jobs that are due by that time, in their order.
func (w *world) takeDue(n int, by time.Time) (all []*job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(all) < n && len(w.delayed) > 0 && !w.delayed[0].due.After(by) {
		all = append(all, heap.Pop(&w.delayed).(*job))
	}
	return all
}

// run has a job run once, by a worker of the process.
func (w *world) run(ctx context.Context, proc int, j *job, again func(*job, time.Duration)) {
	w.mu.Lock()
	j.runs++
	w.runs++
	w.mu.Unlock()
	p, err := w.acquire(WithTicket(ctx, j.ticket), proc, j)
	if err != nil {
		if l, ok := AsLater(err); ok && ctx.Err() == nil {
			if j.ticket = l.Ticket; j.reserved.IsZero() {
				j.reserved = time.Now().Add(l.In)
			}
			again(j, l.In)
		} else if w.kill > 0 { // the system misses it after a while, and knows what it knew of it before
			time.AfterFunc(30*time.Second, func() { w.put(j, 0) })
		}
		return
	}
	w.mu.Lock()
	if j.began = time.Now(); j.reserved.IsZero() {
		j.reserved = j.began
	}
	w.history.Add(j.began, 1)
	if w.done = append(w.done, j); len(w.done) == w.want {
		close(w.full)
	}
	w.mu.Unlock()
	time.Sleep(w.work)
	p.Done()
}

// alive returns a context that ends with a process.
func (w *world) alive(ctx context.Context, proc int) context.Context {
	if proc > 0 || w.kill == 0 {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(w.kill, cancel)
	return ctx
}

// asynq begins a system like asynq: a delayed job is due at a whole second, and each process moves
// what is due to the end of a common list once in a poll. A processor that finds the list empty
// sleeps for about a second. Of jobs that are due in the same second the first by id comes first.
func (w *world) asynq(ctx context.Context) {
	again := func(j *job, in time.Duration) { // the adapter rounds up, because asynq cuts
		w.putAt(j, time.Now().Add(in+time.Second-1).Truncate(time.Second))
	}
	for proc, phase := range w.phases() {
		idle, ctx := w.random(), w.alive(ctx, proc)
		go func() {
			time.Sleep(phase)
			for ctx.Err() == nil {
				due := w.takeDue(1<<30, time.Now())
				w.mu.Lock()
				w.ready = append(w.ready, due...)
				w.mu.Unlock()
				time.Sleep(w.poll)
			}
		}()
		go func() {
			free := make(chan struct{}, w.workers)
			for {
				select {
				case free <- struct{}{}:
				case <-ctx.Done():
					return
				}
				w.mu.Lock()
				var j *job
				if len(w.ready) > 0 {
					j, w.ready = w.ready[0], w.ready[1:]
				}
				w.mu.Unlock()
				if j == nil {
					<-free
					time.Sleep(idle(500*time.Millisecond, 1500*time.Millisecond))
					continue
				}
				time.Sleep(time.Millisecond) // the request of the dequeue
				go func() {
					w.run(ctx, proc, j, again)
					<-free
				}()
			}
		}()
	}
}

// river begins a system like River: what is due within 5 s is available, and each process takes as
// much of it as it has free workers, once in a poll and when a worker gets free, but not within 100
// ms of the last time. What is due later becomes available by a leader, who looks every 5 s.
func (w *world) river(ctx context.Context) {
	const look = 5 * time.Second
	var scheduled jobHeap
	again := func(j *job, in time.Duration) {
		if in <= look {
			w.put(j, in)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		j.due = time.Now().Add(in)
		heap.Push(&scheduled, j)
	}
	go func() {
		for ctx.Err() == nil {
			time.Sleep(look)
			w.mu.Lock()
			for len(scheduled) > 0 && time.Until(scheduled[0].due) <= look {
				heap.Push(&w.delayed, heap.Pop(&scheduled))
			}
			w.mu.Unlock()
		}
	}()
	for proc, phase := range w.phases() {
		ctx := w.alive(ctx, proc)
		go func() {
			var mu sync.Mutex
			free := w.workers
			freed := make(chan struct{}, 1)
			time.Sleep(phase)
			tick := time.NewTicker(w.poll)
			defer tick.Stop()
			for {
				mu.Lock()
				jobs := w.takeDue(free, time.Now())
				free -= len(jobs)
				mu.Unlock()
				for _, j := range jobs {
					go func() {
						w.run(ctx, proc, j, again)
						mu.Lock()
						free++
						mu.Unlock()
						select {
						case freed <- struct{}{}:
						default:
						}
					}()
				}
				time.Sleep(100 * time.Millisecond)
				select {
				case <-freed:
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
}

// displaced returns by how many positions 95 of a hundred jobs, at most, began before or after the
// order of their reservations.
func displaced(begun []*job) int {
	order := slices.Clone(begun)
	slices.SortStableFunc(order, func(a, b *job) int { return a.reserved.Compare(b.reserved) })
	position := make(map[*job]int, len(order))
	for i, j := range order {
		position[j] = i
	}
	by := make([]int, len(begun))
	for i, j := range begun {
		by[i] = max(i-position[j], position[j]-i)
	}
	slices.Sort(by)
	return by[len(by)*95/100]
}
