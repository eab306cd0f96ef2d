//go:build linux

package rollouttest

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// bareN calls may leave in any bareWindow.
const (
	bareN      = 40
	bareWindow = 250 * time.Millisecond
	stopped    = 3 * time.Second // for so long processes are stopped

	bareVariable = "DRIPFEED_BARE_PROCESS" // its value is the address of the store and the key
)

// BareProcess never returns in a process that [Bare] has started. Call it first in TestMain, with
// what opens the store at an address.
func BareProcess(open func(addr string) store.Store) {
	text, is := os.LookupEnv(bareVariable)
	if !is {
		return
	}
	addr, key, _ := strings.Cut(text, "\n")
	b := outbound.Must(outbound.NewSharedBucket(open(addr), key, outbound.Window(bareN, bareWindow)))
	var mu sync.Mutex
	write := func(from, to time.Time) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(from.UnixNano(), to.UnixNano()) // a call, or a stall of the machine
	}
	go stalls(context.Background(), write)
	for range 20 {
		go func() {
			for {
				p, err := b.Acquire(context.Background(), outbound.Cost{1})
				now := time.Now()
				if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
					time.Sleep(full.RetryAfter)
				} else if err != nil {
					time.Sleep(100 * time.Millisecond)
				} else {
					write(now, now)
					p.Done()
				}
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	os.Exit(0)
}

// stalls calls f with each stall of the machine, until ctx ends.
func stalls(ctx context.Context, f func(from, to time.Time)) {
	for ctx.Err() == nil {
		due := time.Now().Add(time.Millisecond)
		time.Sleep(time.Millisecond)
		if now := time.Now(); now.Sub(due) > time.Millisecond && now.Sub(due) < stopped*9/10 {
			f(due, now)
		}
	}
}

// bare is processes that share a window in a store without a queue.
type bare struct {
	t    *testing.T
	key  string
	read sync.WaitGroup

	mu     sync.Mutex
	calls  []time.Time
	stalls [][2]time.Time

	started []time.Time // when processes began, and learned how far away the store is
	resumed []time.Time // when stopped processes went on
}

// start starts a process, and returns what kills it.
func (f *bare) start(addr string) (*os.Process, func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), bareVariable+"="+addr+"\n"+f.key), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a stopped one ends with the test, too
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		f.t.Fatal(err)
	}
	f.started = append(f.started, time.Now())
	f.read.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var n [2]int64
			if _, err := fmt.Sscan(lines.Text(), &n[0], &n[1]); err != nil {
				continue // it was killed
			}
			f.mu.Lock()
			if n[0] == n[1] {
				f.calls = append(f.calls, time.Unix(0, n[0]))
			} else {
				f.stalls = append(f.stalls, [2]time.Time{time.Unix(0, n[0]), time.Unix(0, n[1])})
			}
			f.mu.Unlock()
		}
	})
	return cmd.Process, func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
		_ = in.Close()
	}
}

// Bare lets processes call that share a [outbound.Window] in a store without a queue. Line returns
// the address of the store so far away that a round trip takes as long. Meanwhile one process after
// another is stopped or killed. The test fails if too many calls leave in any window. A machine that
// stalls may move calls closer together, and one that stops a process keeps a call of it back.
func Bare(t *testing.T, line func(t *testing.T, trip time.Duration) (addr string)) {
	const ms = time.Millisecond
	for _, trips := range [][]time.Duration{{ms / 5, 20 * ms, 100 * ms}, {ms / 5, ms / 5, ms / 5}, {5 * ms, 5 * ms, 5 * ms}, {20 * ms, 20 * ms, 20 * ms}, {100 * ms, 100 * ms, 100 * ms}} {
		length := 5 * time.Second
		if os.Getenv("DRIPFEED_LONG") == "1" {
			length = 1100 * bareWindow
		} else if trips[0] == trips[1] {
			continue
		}
		t.Run(fmt.Sprint(trips), func(t *testing.T) {
			t.Parallel()
			f := &bare{t: t, key: crand.Text()}
			var addrs []string
			for _, trip := range trips {
				addrs = append(addrs, line(t, trip))
			}
			f.run(addrs, length)
			f.check()
		})
	}
}

// run lets the processes call. Their lines to the store are in this process, and stall with it.
func (f *bare) run(addrs []string, length time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.read.Go(func() {
		stalls(ctx, func(from, to time.Time) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.stalls = append(f.stalls, [2]time.Time{from, to})
		})
	})
	running, kill := make([]*os.Process, len(addrs)), make([]func(), len(addrs))
	for i, addr := range addrs {
		running[i], kill[i] = f.start(addr)
		defer func() { kill[i]() }()
	}
	for begun, stop := time.Now(), true; time.Since(begun) < length || f.made() < 5*bareN && time.Since(begun) < time.Minute; stop = !stop {
		time.Sleep(500*time.Millisecond + rand.N(500*time.Millisecond))
		if i := rand.IntN(len(running)); stop {
			_ = running[i].Signal(syscall.SIGSTOP)
			time.Sleep(stopped)
			f.resumed = append(f.resumed, time.Now())
			_ = running[i].Signal(syscall.SIGCONT)
		} else {
			kill[i]()
			running[i], kill[i] = f.start(addrs[i])
		}
	}
	for _, k := range kill {
		k()
	}
	cancel()
	f.read.Wait()
}

// check judges the calls.
func (f *bare) check() {
	if len(f.calls) < 5*bareN {
		f.t.Fatalf("only %d calls have left", len(f.calls))
	}
	slices.SortFunc(f.calls, time.Time.Compare)
	most, above, windows, tightest := 0, 0, 0, bareWindow
	var end time.Time // of the last of the windows that follow each other
	for i, at := range f.calls {
		if !at.Before(end) {
			windows, end = windows+1, at.Add(bareWindow)
		}
		in, _ := slices.BinarySearchFunc(f.calls[i:], at.Add(bareWindow), time.Time.Compare)
		most = max(most, in)
		if in <= bareN {
			continue
		}
		above, tightest = above+1, min(tightest, f.calls[i+bareN].Sub(at))
		// A process that begins while the machine stalls takes the store for farther away than it is.
		var stall time.Duration
		since := at.Add(-bareWindow)
		for _, t := range f.started {
			if t.Before(since) && t.After(since.Add(-2*time.Second)) {
				since = t
			}
		}
		for _, s := range f.stalls {
			if s[0].Before(at.Add(bareWindow)) && s[1].After(since) {
				stall = max(stall, s[1].Sub(s[0]))
			}
		}
		// A process may be stopped after its last look at the clock, before the call leaves.
		held := 0
		for _, t := range f.resumed {
			if t.After(at.Add(-50*time.Millisecond)) && t.Before(at.Add(bareWindow)) {
				held++
			}
		}
		if in > bareN+held && f.calls[i+bareN].Sub(at)+4*stall < bareWindow {
			f.t.Errorf("%d calls left in %v, where the machine has stalled for %v", bareN+1, f.calls[i+bareN].Sub(at), stall)
		}
	}
	took := f.calls[len(f.calls)-1].Sub(f.calls[0])
	use := float64(len(f.calls)) / (bareN * float64(took) / float64(bareWindow+10*time.Millisecond))
	f.t.Logf("%d calls in %v, %d windows: at most %d in any, %d begin one above %d, which takes %v; %.0f %% of the quota", len(f.calls), took.Round(time.Second), windows, most, above, bareN, tightest, 100*use)
}

// made returns how many calls have left.
func (f *bare) made() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}
