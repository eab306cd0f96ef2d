package jobs

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// fleet is a simulation of jobs for one API.
type fleet struct {
	System  string // asynq or river
	Procs   int
	Workers int
	Poll    time.Duration
	Jobs    int
	Rate    float64
	Insert  bool          // reservations are booked when the jobs are enqueued
	Hold    time.Duration // the API asks for that at 30 s
	Refuses time.Duration // the API refuses a call at 20, 45 and 70 s, and asks for that
	Kill    time.Duration // the first process is killed then
	Others  float64       // of the rate, taken by callers through a queue of their own
}

type outcome struct {
	Runs     float64 // for each job
	Most     int     // of one job
	Makespan time.Duration
	P95      int     // displaced by so many
	Refused  int     // calls of others
	Trips    float64 // to the store, for each job
	Unseen   int     // jobs that become due, at most, while no process looks
}

// ideal is how long the jobs take if nothing is lost.
func (f *fleet) ideal() time.Duration {
	free := f.Rate * (1 - f.Others)
	return time.Duration(float64(f.Jobs-1)/free*1e9) + f.Hold + 3*f.Refuses
}

// simulate returns what became of the jobs. It checks the limit.
func (f fleet) simulate(t *testing.T) (o outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		limit := outbound.Limit{Capacity: 1, LeakRate: f.Rate}
		m := &remote{Store: store.NewMemory()}
		w := &world{system: f.System, rnd: rand.New(rand.NewPCG(1, 2)), procs: f.Procs, workers: f.Workers, poll: f.Poll, work: 50 * time.Millisecond, kill: f.Kill,
			full: make(chan struct{}), want: f.Jobs}
		var schedulers []*Scheduler
		for range f.Procs {
			schedulers = append(schedulers, New(shared(m, "api", limit), Config{PollInterval: f.Poll}))
		}
		w.acquire = func(ctx context.Context, proc int, _ *job) (outbound.Permit, error) {
			return schedulers[proc].Acquire(ctx, one)
		}
		ctx, cancel := context.WithCancel(bg)
		begin, runs := time.Now(), make([]Run, f.Jobs)
		if f.Insert {
			runs = book(t, schedulers[0], f.Jobs)
		}
		for _, r := range runs {
			w.enqueue(0, r)
		}
		w.start(ctx)
		if f.Hold > 0 {
			time.AfterFunc(30*time.Second, func() {
				noError(t, shared(m, "api", limit).Hold(bg, f.Hold))
			})
		}
		for _, at := range []time.Duration{20 * time.Second, 45 * time.Second, 70 * time.Second} {
			if f.Refuses > 0 {
				time.AfterFunc(at, func() {
					p, err := queue.New(shared(m, "api", limit), queue.Config{}).Acquire(bg, one)
					noError(t, err)
					w.history.Add(time.Now(), 1)
					p.Refused(f.Refuses)
					p.Done()
				})
			}
		}
		refused := 0
		if f.Others > 0 {
			q := queue.New(shared(m, "api", limit), queue.Config{MaxWait: 10 * time.Second})
			go func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(float64(time.Second) / f.Rate / f.Others))
					if p, err := q.Acquire(ctx, one); err == nil {
						w.history.Add(time.Now(), 1)
						p.Done()
					} else if ctx.Err() == nil {
						refused++
					}
				}
			}()
		}
		<-w.full
		o.Makespan = time.Since(begin)
		cancel()
		time.Sleep(time.Minute)
		synctest.Wait()
		o.Trips = float64(m.trips.Load()) / float64(f.Jobs)
		for _, j := range w.jobs {
			o.Most = max(o.Most, j.runs)
		}
		o.Runs, o.P95, o.Refused = float64(w.runs)/float64(f.Jobs), displaced(w.done), refused
		o.Unseen = int(w.unseen.Seconds() * f.Rate)
		noError(t, w.history.Check(limit.Capacity, limit.LeakRate, 0.012*limit.LeakRate))
	})
	return o
}

// judge simulates the fleets, with and without reservations booked before, and fails the test where a
// job runs more often than so many times in the mean, or they take longer than so long beyond the ideal, or
// 95 of 100 jobs are displaced by more than so many positions.
func judge(t *testing.T, all []fleet, bounds func(f *fleet) (runs float64, late time.Duration, displaced int)) {
	t.Helper()
	for _, f := range all {
		for _, f.Insert = range []bool{false, true} {
			runs, late, displaced := bounds(&f)
			o := f.simulate(t)
			// Jobs that become due while no process looks come late, and others leave before them.
			if t.Logf("%+v: %+v", f, o); o.Runs > runs || o.Makespan > f.ideal()+late || o.P95 > max(displaced, o.Unseen) || o.Refused > 0 {
				t.Errorf("%+v: %+v; want %v runs, %v late, displaced %d", f, o, runs, late, displaced)
			}
		}
	}
}

// either returns before for a fleet whose jobs have reservations before they come, else after.
func (f *fleet) either(before, after float64) float64 {
	if f.Insert {
		return before
	}
	return after
}

// A job without capacity runs once to get its reservation, and once at that. If the reservation is
// booked when the job is enqueued, it runs once.
func TestSim_JobRunsTwiceOrOnceIfBookedBefore(t *testing.T) {
	judge(t, everySystem(1, 5, 15), func(f *fleet) (float64, time.Duration, int) {
		runs := 2.05
		if f.System == "river" && f.Workers == 10 {
			runs = 2.1 // 2.07 in one of forty runs: the Go scheduler decides which job of an instant is first
		}
		return f.either(1.05, runs), f.Poll + 1500*time.Millisecond, 40
	})
	if long {
		judge(t, everySystem(5), func(f *fleet) (float64, time.Duration, int) {
			f.Jobs = 100_000
			return f.either(1.1, 3.2), time.Hour, f.Jobs
		})
	}
}

// Each job that was due in a hold runs once more, and no time is lost. So it is with a faster API.
func TestSim_HoldCostsAJobOneRun(t *testing.T) {
	fast := fleet{System: "asynq", Procs: 5, Workers: 400, Poll: time.Second, Jobs: 2000, Rate: 100}
	judge(t, append(everySystem(1, 5), fast), func(f *fleet) (float64, time.Duration, int) {
		if f.Hold = time.Minute; f.Rate == 100 {
			f.Hold = 20 * time.Second
			return 3, 3 * time.Second, f.Jobs
		}
		return f.either(2, 3), 3 * time.Second, 60
	})
}

// The API refuses three calls, and asks for 10 s each time. If the jobs came at the very times of their
// Laters, they would run 1.1 times more: one that is due in the second pause after its
// reservation was moved by the first runs again. The order stays. If a process looks each 15 s,
// jobs that found no capacity in time come back up to 15 s later than others, behind those.
func TestSim_ThreeRefusalsCostAJobOneRun(t *testing.T) {
	judge(t, everySystem(1, 5, 15), func(f *fleet) (float64, time.Duration, int) {
		f.Refuses = 10 * time.Second
		displaced := 40
		if f.Poll == 15*time.Second {
			displaced = 200
		}
		return f.either(2.4, 3.45), 35 * time.Second, displaced
	})
}

// A process is killed while jobs wait in it. The system hands them to others 30 s later, and none
// is lost.
func TestSim_KilledProcessLosesNoJob(t *testing.T) {
	judge(t, everySystem(1, 5, 15), func(f *fleet) (float64, time.Duration, int) {
		f.Kill = 20 * time.Second
		return 2.2, f.Poll + 35*time.Second, f.Jobs
	})
}

// Callers that are no jobs take a tenth of the rate through a queue of their own. None is refused.
func TestSim_JobsLeaveCapacityToOthers(t *testing.T) {
	judge(t, everySystem(1, 5), func(f *fleet) (float64, time.Duration, int) {
		f.Others = 0.1
		return 3.5, 3 * time.Second, f.Jobs
	})
}

// everySystem returns fleets with a thousand jobs for an API of 10 per second, of each system and for
// each poll in seconds. Under the race detector they are two.
func everySystem(polls ...time.Duration) (all []fleet) {
	for _, system := range []string{"asynq", "river"} {
		for _, workers := range []int{10, 400} {
			for _, poll := range polls {
				if raced && (poll != 1 || (system == "river") != (workers == 400)) {
					continue
				}
				all = append(all, fleet{System: system, Procs: 5, Workers: workers, Poll: poll * time.Second, Jobs: 1000, Rate: 10})
			}
		}
	}
	return all
}

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
	system  string // asynq or river
	rnd     *rand.Rand
	procs   int
	workers int           // of each process
	poll    time.Duration // how often a process looks for what is due
	work    time.Duration // that a job takes
	unseen  time.Duration // the longest time in which no process looks for what is due
	kill    time.Duration // after that the first process is dead; 0: it lives
	acquire func(ctx context.Context, proc int, j *job) (outbound.Permit, error)

	mu      sync.Mutex // protects what follows
	jobs    []*job     // all of them
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

// enqueue has a new job run at its reservation, or as soon as it can.
func (w *world) enqueue(tenant int, r Run) {
	j := &job{id: len(w.jobs), tenant: tenant, ticket: r.Ticket, came: time.Now(), reserved: r.At}
	w.jobs = append(w.jobs, j)
	switch {
	case w.system == "river":
		w.put(j, max(0, time.Until(r.At)))
	case r.Ticket != "": // the adapter rounds up, because asynq cuts
		w.putAt(j, r.At.Add(time.Second-1).Truncate(time.Second))
	default:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ready = append(w.ready, j)
	}
}

// start begins the system.
func (w *world) start(ctx context.Context) {
	if w.system == "asynq" {
		w.asynq(ctx)
	} else {
		w.river(ctx)
	}
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
