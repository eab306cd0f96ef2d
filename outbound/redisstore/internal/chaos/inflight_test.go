//go:build linux

package chaos

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/internal/rollouttest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// slots is how many calls may be in flight in the tests of this file, and lease the shortest lease.
const (
	slots = 6
	lease = store.MinLease
)

// makeCalls makes calls of a child that is to report when they begin and end.
func makeCalls(o *orders, out *diary, calls *sync.RWMutex) {
	s := redisstore.New(redis.NewClient(&redis.Options{Addr: o.Addr}), redisstore.Config{})
	b, err := outbound.NewSharedBucket(&rollouttest.Asks{Store: s, Reached: func(_ string, at time.Time) { out.write("reached", at.UnixNano()) }}, o.Key, o.Limits...)
	if err != nil {
		panic(err)
	}
	acquire := b.Acquire
	if o.Waits {
		acquire = queue.New(b, queue.Config{}).Acquire
	}
	var all sync.WaitGroup
	for i := range o.Callers {
		all.Go(func() {
			for {
				calls.RLock()
				p, err := acquire(context.Background(), outbound.Cost{1})
				if err == nil {
					out.write("begin", int64(i), time.Now().UnixNano())
				}
				calls.RUnlock()
				var full *outbound.ThrottledError
				if errors.As(err, &full) {
					time.Sleep(min(full.RetryAfter, 20*time.Millisecond))
				}
				if err != nil {
					time.Sleep(5 * time.Millisecond)
					continue
				}
				time.Sleep(50*time.Millisecond + rand.N(100*time.Millisecond))
				out.write("end", int64(i), time.Now().UnixNano())
				p.Done()
			}
		})
	}
	all.Wait()
}

// newCallers are children that share six calls in flight on a server.
func newCallers(t *testing.T, server *redistest.Server, callers int, waits bool) *children {
	return newChildren(t, orders{
		Addr: server.Addr(), Key: "chaos " + crand.Text(), Callers: callers, InFlight: true, Waits: waits,
		Limits: []outbound.Limit{outbound.InFlight(slots).Lease(lease)},
	})
}

// name names the process in the history of calls in flight.
func (one *child) name() string { return fmt.Sprintf("%p", one) }

// inFlight returns how many calls of some children are in flight.
func inFlight(some ...*child) (n int) {
	for _, one := range some {
		one.mu.Lock()
		n += len(one.open)
		one.mu.Unlock()
	}
	return n
}

// goOn waits until each of some children has made n more calls.
func goOn(t *testing.T, n int, some ...*child) {
	t.Helper()
	for _, one := range some {
		made := func() int {
			one.mu.Lock()
			defer one.mu.Unlock()
			return one.made
		}
		want := made() + n
		eventually(t, "calls go on", func() bool { return made() >= want })
	}
}

// stop has a child stop itself while none of its calls is being admitted.
func (one *child) stop(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(one.stdin, "stop\n")
	require.NoError(t, err)
	eventually(t, "the child has stopped itself", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(one.cmd.Process.Pid) + "/stat")
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(after, "T")
	})
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// checkInFlight ends the children, and checks that there were never more calls in flight than slots.
func (c *children) checkInFlight() {
	c.t.Helper()
	c.end()
	most, _ := c.flight.Most(rollouttest.Silence(lease))
	c.t.Logf("%d calls, %d in flight at most", c.flight.Len(), most)
	require.NoError(c.t, c.flight.Check(slots, rollouttest.Silence(lease)))
	require.Equal(c.t, slots, most)
}

// Processes are killed. The others never have more calls in flight, and have all slots after a lease
// at the latest.
func TestInFlight_ProcessesAreKilled(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	server := redistest.Start(t)
	c := newCallers(t, server, slots, true)
	one, two, three := c.add(), c.add(), c.add()
	goOn(t, 10, one, two, three)
	time.Sleep(d.between(0, 200*time.Millisecond))
	three.kill()
	killed := time.Now()
	eventually(t, "the others have all slots", func() bool { return inFlight(one, two) == slots })
	t.Logf("the others have all slots after %v", time.Since(killed).Round(time.Millisecond))
	c.add()
	goOn(t, 5, c.all[3], one, two)
	c.checkInFlight() // kills the rest

	for range 2 { // after that the server has done what the killed processes have asked for
		require.NoError(t, server.Client(t).Ping(t.Context()).Err())
	}
	b, err := outbound.NewSharedBucket(redisstore.New(server.Client(t), redisstore.Config{}), c.orders.Key, c.orders.Limits...)
	require.NoError(t, err)
	var passed time.Duration // for the store, at least
	for got, last := 0, time.Now(); got < slots; time.Sleep(50 * time.Millisecond) {
		sent := time.Now()
		_, err := b.Acquire(t.Context(), outbound.Cost{1})
		passed += min(sent.Sub(last), lease/6)
		last = time.Now()
		if err == nil {
			got++
			continue
		}
		require.Less(t, passed, lease+lease/6, "a new process has %d slots: %v", got, err)
	}
}

// A process is stopped for longer than its lease, in the middle of calls. The others have its slots
// then. When it goes on, only its calls from before come on top, and it gets slots when there are some.
func TestInFlight_AProcessIsStopped(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	c := newCallers(t, redistest.Start(t), slots/3, false)
	one, two, three := c.add(), c.add(), c.add()
	goOn(t, 5, one, two, three)
	time.Sleep(d.between(0, 200*time.Millisecond))
	eventually(t, "it has calls in flight", func() bool { return inFlight(three) == slots/3 })
	three.stop(t)
	n, stopped := inFlight(three), time.Now()
	four := c.add()
	eventually(t, "the others have all slots", func() bool { return inFlight(one, two, four) == slots })
	t.Logf("the others have all slots after %v, while it has %d calls in flight", time.Since(stopped).Round(time.Millisecond), n)
	require.NoError(t, three.cmd.Process.Signal(syscall.SIGCONT))
	want := c.flight.Len() + 30
	eventually(t, "calls go on", func() bool { return c.flight.Len() >= want })
	four.kill() // two of the eight callers may have no slot until then
	goOn(t, 5, one, two, three)
	c.checkInFlight()
}

// processesOf are the stores of as many processes.
func processesOf(n int, client func() redis.UniversalClient) (stores []store.Store) {
	for range n {
		stores = append(stores, redisstore.New(client(), redisstore.Config{}))
	}
	return stores
}

// Sentinels promote a replica. The grants that it has not heard of may be made once more. From when each
// process has asked it there are never more calls than slots.
func TestInFlight_SentinelsPromoteAReplica(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	s := redistest.StartSentinel(t)
	f := rollouttest.StartCallers(t, slots, 3*lease, processesOf(3, func() redis.UniversalClient { return s.Client(t) }))
	f.AllGoOn(t, 10)
	time.Sleep(d.between(0, 200*time.Millisecond))
	f.Split()
	s.Servers[0].Kill(t)
	promoted(t, s.Servers[1:]...)
	f.AllAsk(t)
	f.Split()
	f.AllGoOn(t, 20)
	f.Check(t, 0, slots)
}
