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
	var all sync.WaitGroup
	for i := range o.Callers {
		all.Go(func() {
			for {
				calls.RLock()
				p, err := b.Acquire(context.Background(), outbound.Cost{1})
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

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// A process is stopped for longer than its lease, in the middle of calls. The others have its slots
// then. When it goes on, only its calls from before come on top, and it gets slots when there are
// some.
func TestInFlight_AProcessIsStopped(t *testing.T) {
	t.Parallel()
	d := newDice(t)
	c := newChildren(t, orders{
		Addr: redistest.Start(t).Addr(), Key: "chaos " + crand.Text(), Callers: slots / 3, InFlight: true,
		Limits: []outbound.Limit{outbound.InFlight(slots).Lease(lease)},
	})
	one, two, three := c.add(), c.add(), c.add()
	goOn(t, 5, one, two, three)
	time.Sleep(d.between(0, 200*time.Millisecond))
	eventually(t, "it has calls in flight", func() bool { return inFlight(three) == slots/3 })
	_, err := io.WriteString(three.stdin, "stop\n") // it does so while none of its calls is being admitted
	require.NoError(t, err)
	eventually(t, "the child has stopped itself", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(three.cmd.Process.Pid) + "/stat")
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(after, "T")
	})
	n, stopped := inFlight(three), time.Now()
	four := c.add()
	eventually(t, "the others have all slots", func() bool { return inFlight(one, two, four) == slots })
	t.Logf("the others have all slots after %v, while it has %d calls in flight", time.Since(stopped).Round(time.Millisecond), n)
	require.NoError(t, three.cmd.Process.Signal(syscall.SIGCONT))
	want := c.flight.Len() + 30
	eventually(t, "calls go on", func() bool { return c.flight.Len() >= want })
	four.kill() // two of the eight callers may have no slot until then
	goOn(t, 5, one, two, three)
	c.end()
	most, _ := c.flight.Most(rollouttest.Silence(lease))
	t.Logf("%d calls, %d in flight at most", c.flight.Len(), most)
	require.NoError(t, c.flight.Check(slots, rollouttest.Silence(lease)))
	require.Equal(t, slots, most)
}

// processesOf are the stores of as many processes.
func processesOf(n int, client func() redis.UniversalClient) (stores []store.Store) {
	for range n {
		stores = append(stores, redisstore.New(client(), redisstore.Config{}))
	}
	return stores
}

// Sentinels promote a replica. The grants that it lacks may be made once more. From when each
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
