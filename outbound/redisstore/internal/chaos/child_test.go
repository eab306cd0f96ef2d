//go:build linux

package chaos

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// orders are what a worker in a process of its own does. The environment variable of
// that name turns this test binary into such a worker.
type orders struct {
	Addr      string
	Key       string
	Limits    []outbound.Limit
	Callers   int
	Tolerance time.Duration
	InFlight  bool // it makes calls that take a while, and reports when they begin and end
}

const ordersVariable = "DRIPFEED_CHAOS_WORKER"

// obey is the worker's main function. To call, the worker writes the time of the call:
// each line that has left the process is a call, even if the process is then killed.
// obey returns when its input ends, at the latest when the test ends.
func obey(text string) {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	var calls sync.RWMutex // locked for reading while a call is being admitted
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); { // each asks it to stop itself
			calls.Lock()
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			time.Sleep(500 * time.Millisecond) // another thread may get the signal
			calls.Unlock()
		}
		os.Exit(0)
	}()
	out := &diary{}
	if o.InFlight {
		makeCalls(&o, out, &calls)
		return
	}
	go watch(nil, func(d delay) { out.write("late", d.from.UnixNano(), d.to.UnixNano()) })
	rdb := redis.NewClient(&redis.Options{Addr: o.Addr})
	r := role{limits: o.Limits, tolerance: o.Tolerance}
	w, err := newWorker(rdb, o.Key, r, out, nil)
	if err != nil {
		panic(err)
	}
	w.call = func() { out.write("call", time.Now().UnixNano()) }
	var wg sync.WaitGroup
	for range o.Callers {
		wg.Go(func() { w.work(context.Background()) })
	}
	wg.Wait()
}

// diary writes to the test what a worker does: one line for each call, grant or
// return.
type diary struct{ mu sync.Mutex }

func (d *diary) write(word string, numbers ...int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := fmt.Appendf(nil, "%s %d\n", word, numbers)
	if _, err := os.Stdout.Write(line); err != nil { // one write for the whole line
		os.Exit(1)
	}
}

func (d *diary) grant(g grant) {
	d.write("grant", int64(g.born), int64(g.place), int64(g.at), int64(g.due))
}
func (d *diary) offer(s spot)    { d.write("offer", int64(s.born), int64(s.place)) }
func (d *diary) giveBack(s spot) { d.write("back", int64(s.born), int64(s.place)) }
func (d *diary) keep(s spot)     { d.write("keep", int64(s.born), int64(s.place)) }

// children are worker processes.
type children struct {
	*record
	t      *testing.T
	orders orders
	calls  outboundtest.History // the calls of all children
	flight outboundtest.Calls   // the calls in flight of all children
	late   *lateness            // the lateness of this process, and of the children
	all    []*child
}

// child is one worker process.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	done   chan struct{} // closed when the child has ended, and the test has read all its lines
	calls  outboundtest.History
	record record
	mu     sync.Mutex
	pauses []delay // the times in which the test had stopped it
	lates  []delay

	open   map[int64]time.Time // when its calls in flight began, by caller
	made   int                 // calls that have ended
	killed time.Time
}

// processes counts the running children of all tests.
var processes atomic.Int64

func newChildren(t *testing.T, o orders) *children {
	c := &children{record: &record{}, t: t, orders: o, late: measure(t)}
	t.Cleanup(c.end)
	return c
}

// start runs functions that start processes, in a thread that never ends. The kernel
// kills a child when the thread that started it ends.
var start = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// add starts one more child.
func (c *children) add() *child {
	c.t.Helper()
	text, err := json.Marshal(c.orders)
	require.NoError(c.t, err)
	one := &child{cmd: exec.Command(os.Args[0]), done: make(chan struct{}), open: map[int64]time.Time{}}
	one.cmd.Env = append(os.Environ(), ordersVariable+"="+string(text))
	one.cmd.Stderr = os.Stderr
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	one.stdin, err = one.cmd.StdinPipe()
	require.NoError(c.t, err)
	out, err := one.cmd.StdoutPipe()
	require.NoError(c.t, err)
	started := make(chan error)
	start() <- func() { started <- one.cmd.Start() }
	require.NoError(c.t, <-started)
	processes.Add(1)
	c.all = append(c.all, one)
	go func() {
		defer close(one.done)
		defer processes.Add(-1)
		c.listen(one, out)
		_ = one.cmd.Wait() // the test has killed it
	}()
	return one
}

// listen records the lines of a child until it ends. It drops an unfinished line: that
// call was not made. Places that the child was about to give back when it was killed count
// as given back: the store may have them, and no call uses them.
func (c *children) listen(one *child, out io.Reader) {
	offered := map[spot]int{}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			for s, n := range offered {
				for range n {
					c.giveBack(s)
					one.record.giveBack(s)
				}
			}
			one.mu.Lock()
			defer one.mu.Unlock()
			for _, begin := range one.open {
				c.flight.Add(one.name(), begin, later(begin, one.killed))
			}
			one.open = nil
			return
		}
		word, rest, _ := strings.Cut(line, " ")
		var n [4]int64
		_, _ = fmt.Sscanf(rest, "[%d %d %d %d", &n[0], &n[1], &n[2], &n[3]) // a line may have fewer than four numbers
		place := spot{time.Duration(n[0]), time.Duration(n[1])}
		switch word {
		case "call":
			at := time.Unix(0, n[0])
			one.calls.Add(at, 1)
			c.calls.Add(at, 1)
		case "grant":
			g := grant{spot: place, at: time.Duration(n[2]), due: time.Duration(n[3])}
			c.grant(g)
			one.record.grant(g)
		case "offer":
			offered[place]++
		case "keep":
			offered[place]--
		case "back":
			offered[place]--
			c.giveBack(place)
			one.record.giveBack(place)
		case "late":
			one.mu.Lock()
			one.lates = append(one.lates, delay{time.Unix(0, n[0]), time.Unix(0, n[1])})
			one.mu.Unlock()
		case "reached":
			c.flight.Reached(one.name(), time.Unix(0, n[0]))
		case "begin":
			one.mu.Lock()
			one.open[n[0]] = time.Unix(0, n[1])
			one.mu.Unlock()
		case "end":
			one.mu.Lock()
			c.flight.Add(one.name(), one.open[n[0]], time.Unix(0, n[1]))
			delete(one.open, n[0])
			one.made++
			one.mu.Unlock()
		default:
			c.t.Errorf("a worker says %q", line)
		}
	}
}

func (one *child) kill() {
	one.mu.Lock()
	if one.killed.IsZero() {
		one.killed = wall(time.Now())
	}
	one.mu.Unlock()
	_ = one.cmd.Process.Kill() // it may be gone already
	<-one.done
	_ = one.stdin.Close()
}

// pause stops a child for a time, as when its machine is suspended.
func (c *children) pause(one *child, d time.Duration) {
	c.t.Helper()
	from := time.Now()
	require.NoError(c.t, one.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(d)
	to := time.Now()
	require.NoError(c.t, one.cmd.Process.Signal(syscall.SIGCONT))
	one.mu.Lock()
	defer one.mu.Unlock()
	one.pauses = append(one.pauses, delay{wall(from), wall(to)})
}

// beyond returns by how many calls a child made more calls after a time than it has
// reservations for, within a tolerance. So many calls used reservations that were due before. A
// worker books ahead, and further if its round trips take longer: a short pause can end
// before its earlier bookings are due.
func (one *child) beyond(from time.Time, tolerance time.Duration) int {
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for at := range one.record.due().All() {
		if !at.Add(tolerance).Before(from) {
			changes = append(changes, change{at.Add(-tolerance), -1})
		}
	}
	for at := range one.calls.All() {
		if !at.Before(from) {
			changes = append(changes, change{at, 1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	n, most := 0, 0
	for _, c := range changes {
		n += c.by
		most = max(most, n)
	}
	return most
}

// wall sround trips a time of its monotonic clock, so that it compares with the times of
// other processes.
func wall(t time.Time) time.Time { return t.Round(0) }

// end ends all children.
func (c *children) end() {
	for _, one := range c.all {
		one.kill()
	}
}

// early returns by how much the tolerance, and the lateness of the machine, may have
// brought a call nearer to the calls before it. A pause that the test has made does
// not count: the test wants to see what the worker does with its calls then.
func (c *children) early() func(time.Time) time.Duration {
	l := &lateness{}
	c.late.mu.Lock()
	for _, d := range c.late.all {
		l.add(delay{wall(d.from), wall(d.to)})
	}
	c.late.mu.Unlock()
	for _, one := range c.all {
		for _, d := range one.lates {
			paused := false
			for _, p := range one.pauses {
				paused = paused || d.from.Before(p.to.Add(time.Millisecond)) && d.to.After(p.from)
			}
			if !paused {
				l.add(d)
			}
		}
	}
	return func(at time.Time) time.Duration { return c.orders.Tolerance + l.of(at) }
}

// check ends all children and checks their calls and reservations, by each of their limits.
func (c *children) check() {
	c.t.Helper()
	c.end()
	c.checkAllowing(0)
}

// checkAllowing is check for children that have ended, and for so many calls above a limit.
func (c *children) checkAllowing(slack float64) {
	c.t.Helper()
	early := c.early()
	for _, l := range c.orders.Limits {
		p := promiseOf(c.t, l)
		c.checkReservations(c.t, p, 0)
		checkCalls(c.t, &c.calls, p, slack, early)
	}
}

// The test kills one of ten worker processes after the other, wherever it is, and
// starts another one. Its bookings are lost, and leak away; the others have the rate.
func TestKill_CostsOnlyReservations(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	limit := outbound.Limit{Capacity: 4, LeakRate: 200}
	c := newChildren(t, orders{
		Addr: server.Addr(), Key: "chaos " + crand.Text(), Callers: 2, Tolerance: 20 * time.Millisecond,
		Limits: []outbound.Limit{limit, outbound.Window(36, 200*time.Millisecond)}, // calls go for 160 ms, and then wait
	})
	for range 10 {
		c.add()
	}
	for _, one := range c.all {
		goesOn(t, &one.calls, 3)
	}
	time.Sleep(d.between(0, 200*time.Millisecond))
	goesOn(t, &c.calls, 100)
	began := wall(time.Now())
	var killed time.Time
	var victims []*child
	for range 12 {
		victim := c.all[d.IntN(len(c.all))]
		for slices.Contains(victims, victim) {
			victim = c.all[d.IntN(len(c.all))]
		}
		victims = append(victims, victim)
		killed = wall(time.Now())
		victim.kill()
		goesOn(t, &c.calls, 20)
		c.add()
		time.Sleep(d.between(100*time.Millisecond, 200*time.Millisecond))
	}
	// A machine that is too busy for the rate while none is killed judges no recovery, and one that stalls
	// later delays it: the queue's test of a killed process says how much a kill costs, in fake time.
	const window, near = 100 * time.Millisecond, 0.8
	all := times(&c.calls)
	before, _ := slices.BinarySearchFunc(all, began, time.Time.Compare)
	if recovery(all[:before], all[0], window, near*limit.LeakRate) >= 0 {
		eventually(t, "the rate is back after the last kill", func() bool {
			return recovery(times(&c.calls), killed, window, near*limit.LeakRate) >= 0
		})
	}
	goesOn(t, &c.calls, 50)
	c.check()
}

// One of two workers is paused, as by a debugger or on a suspended machine, for half a
// second and for five. Meanwhile its reservations come due, and the other worker has the
// rate. The paused worker does not make the missed calls in a bunch afterwards.
func TestPause_ProcessDoesNotCatchUp(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	c := newChildren(t, orders{
		Addr: server.Addr(), Key: "chaos " + crand.Text(), Callers: 64, Tolerance: 5 * time.Millisecond,
		Limits: []outbound.Limit{{Capacity: 10, LeakRate: 1000}, outbound.Window(190, 200*time.Millisecond)}, // calls wait for 30 ms at most
	})
	one, other := c.add(), c.add()
	for _, pause := range []time.Duration{500 * time.Millisecond, d.between(100*time.Millisecond, 500*time.Millisecond), 5 * time.Second} {
		goesOn(t, &one.calls, 20)
		goesOn(t, &other.calls, 20)
		time.Sleep(d.between(0, 100*time.Millisecond))
		n := other.calls.Len()
		c.pause(one, pause)
		if pause > time.Second { // a busy machine may keep it from the processor for less
			require.Greater(t, other.calls.Len(), n+10, "the other one stands still")
		}
		goesOn(t, &one.calls, 1)
	}
	goesOn(t, &one.calls, 20)
	time.Sleep(200 * time.Millisecond)
	c.end()
	most := 0
	for _, p := range one.pauses {
		n := one.beyond(p.to, c.orders.Tolerance)
		t.Logf("after a pause of %v %d calls went with places that were due in it", p.to.Sub(p.from).Round(time.Millisecond), n)
		// Calls that the queue had let go already, and that had not gone.
		require.LessOrEqual(t, n, 5)
		most = max(most, n)
	}
	c.checkAllowing(float64(most)) // no two pauses end within a window
}
