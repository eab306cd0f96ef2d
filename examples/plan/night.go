package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// night is a backlog with the time that it has, and the calls of users in that time.
type night struct {
	API, Zone    string
	Start, Until string    // "2006-01-02 15:04", in the zone
	Headroom     float64   // what the backlog keeps free of each limit for users
	Users        []float64 // their calls in each hour of the day, of one unit each
	Jobs         []struct {
		Name  string
		Calls int
		Cost  outbound.Cost // of each call; one unit if it is left out
	}

	limits     []outbound.Limit
	begin, end time.Time
}

// outcome counts the calls of a night.
type outcome struct {
	hours   []hour
	left    []int       // calls of each job
	done    []time.Time // when its last call ended
	waits   []time.Duration
	refused int // of the users' calls
}

type hour struct{ users, batch int }

const clock = "2006-01-02 15:04"

// readNight reads a backlog, and the limits of its API from a file as that of examples/proxy.
func readNight(backlog, limits string) (*night, error) {
	n, apis := &night{}, map[string]struct{ Limits []outbound.Limit }{}
	for _, f := range []struct {
		path string
		into any
	}{{backlog, n}, {limits, &apis}} {
		text, err := os.ReadFile(f.path)
		if err == nil {
			err = json.Unmarshal(text, f.into)
		}
		if err != nil {
			return nil, cli.Wrong("%s: %v", f.path, err)
		}
	}
	zone, err := time.LoadLocation(n.Zone)
	if err != nil {
		return nil, cli.Wrong("%s: %v", backlog, err)
	}
	calls := 0
	for i := range n.Jobs {
		if calls += max(0, n.Jobs[i].Calls); n.Jobs[i].Cost == (outbound.Cost{}) {
			n.Jobs[i].Cost = outbound.Cost{1}
		}
	}
	n.begin, err = time.ParseInLocation(clock, n.Start, zone)
	if err == nil {
		n.end, err = time.ParseInLocation(clock, n.Until, zone)
	}
	n.limits = apis[n.API].Limits
	switch {
	case err != nil:
		return nil, cli.Wrong("%s: %v", backlog, err)
	case n.limits == nil:
		return nil, cli.Wrong("%s: no limits of %q", limits, n.API)
	case !n.end.After(n.begin) || n.end.Sub(n.begin) > 48*time.Hour || n.begin.Year() < 2001:
		return nil, cli.Wrong("%s: start to until is not up to 48 hours after 2000", backlog)
	case len(n.Users) != 24 || slices.Max(n.Users) > 10_000 || slices.Min(n.Users) < 0 || calls > 200_000:
		return nil, cli.Wrong("%s: needs users of 24 hours, at most 10000 in each, and at most 200000 calls", backlog)
	}
	return n, nil
}

// try runs the night under limits.
func (n *night) try(limits []outbound.Limit, p plan) (o *outcome, err error) {
	synctest.Test(new(testing.T), func(*testing.T) {
		year, month, day := n.begin.Date()
		midnight := time.Date(year, month, day, 0, 0, 0, 0, n.begin.Location()) // what users have sent since is a part of the day's quota
		time.Sleep(time.Until(midnight))
		b, bad := outbound.NewBucket(n.API, limits...)
		if err = bad; err != nil {
			return
		}
		users := queue.New(b, queue.Config{MaxWait: 10 * time.Second})
		batch := queue.New(b, queue.Config{Headroom: n.Headroom, Behind: users})
		ctx, cancel := context.WithDeadline(context.Background(), n.end)
		defer cancel()
		o = &outcome{hours: make([]hour, int(math.Ceil(n.end.Sub(n.begin).Hours()))), done: make([]time.Time, len(n.Jobs))}
		var mu sync.Mutex
		var all sync.WaitGroup
		count := func(f func(h *hour)) {
			mu.Lock()
			defer mu.Unlock()
			if in := int(time.Since(n.begin) / time.Hour); time.Now().After(n.begin) && in < len(o.hours) {
				f(&o.hours[in])
			}
		}
		all.Go(func() {
			for at := midnight; at.Before(n.end); {
				rate := n.Users[at.Hour()]
				if rate < 1 {
					at = at.Add(time.Hour)
					continue
				}
				time.Sleep(time.Until(at))
				all.Go(func() {
					came := time.Now()
					permit, err := users.Acquire(context.Background(), outbound.Cost{1, 1, 1, 1})
					count(func(h *hour) {
						if err != nil {
							o.refused++
							return
						}
						o.waits = append(o.waits, time.Since(came))
						h.users++
					})
					permit.Done()
				})
				at = at.Add(time.Duration(float64(time.Hour) / rate))
			}
		})
		time.Sleep(time.Until(n.begin))
		for i, job := range n.Jobs {
			calls := func(yield func(int) bool) {
				for c := 0; c < job.Calls && yield(c); c++ {
				}
			}
			o.left = append(o.left, job.Calls)
			for _, failed := range outbound.Each(ctx, batch, job.Cost, p.callers, calls, func(context.Context, int) error {
				count(func(h *hour) { h.batch++ })
				time.Sleep(p.latency)
				return nil
			}) {
				if failed == nil {
					o.left[i]--
					o.done[i] = time.Now()
				} else if ctx.Err() == nil && !errors.Is(failed, context.DeadlineExceeded) {
					err = failed // a call that is too late waits for another night
				}
			}
		}
		all.Wait()
	})
	return o, err
}

// late reports whether calls of the backlog are left.
func (o *outcome) late() bool { return slices.Max(append(o.left, 0)) > 0 }

// show runs the night, draws its hours, and says what is left, and which limits would change that.
func (n *night) show(out io.Writer, p plan) error {
	o, err := n.try(n.limits, p)
	if err != nil {
		return err
	}
	most := 1
	for _, h := range o.hours {
		most = max(most, h.users+h.batch)
	}
	fmt.Fprintf(out, "%s\n\n        users  batch  ▒ users  █ batch\n", shows)
	for i, h := range o.hours {
		u, b := 36*h.users/most, 36*(h.users+h.batch)/most
		fmt.Fprintf(out, "%s %6d %6d  %s%s%s\n", n.begin.Add(time.Duration(i)*time.Hour).Format("15:04"), h.users, h.batch,
			strings.Repeat("▒", u), strings.Repeat("█", b-u), strings.Repeat("·", 36-b))
	}
	fmt.Fprintln(out)
	for i, job := range n.Jobs {
		if o.left[i] > 0 {
			fmt.Fprintf(out, "%-12.12s %d of %d calls must wait\n", job.Name, o.left[i], job.Calls)
		} else {
			fmt.Fprintf(out, "%-12.12s done at %s\n", job.Name, o.done[i].In(n.begin.Location()).Format("15:04"))
		}
	}
	slices.Sort(o.waits)
	longest := time.Duration(0)
	if len(o.waits) > 0 {
		longest = o.waits[len(o.waits)-1]
	}
	fmt.Fprintf(out, "%-12s %d refused, longest wait %v\n", "users", o.refused, short(longest))
	if o.late() {
		fmt.Fprintf(out, "\nTo be done by %s, ask for one of:\n", n.end.Format("15:04"))
		return n.ask(out, p)
	}
	return nil
}

// ask prints what each limit would have to be if it alone were higher, or else all of them.
func (n *night) ask(out io.Writer, p plan) error {
	helps := false
	for i := range len(n.limits) + 1 {
		one := i < len(n.limits)
		if !one && (helps || i == 1) {
			break
		}
		enough := func(factor float64) (more []outbound.Limit, ok bool, err error) {
			for j, l := range n.limits {
				if j == i || !one {
					if l, err = times(l, factor); err != nil {
						return nil, false, err
					}
				}
				more = append(more, l)
			}
			o, err := n.try(more, p)
			return more, err == nil && !o.late(), err
		}
		low, high := 1., 8.
		best, ok, err := enough(high)
		for helps = helps || ok; ok && err == nil && high/low > 1.05; {
			middle := math.Sqrt(low * high)
			if more, suffices, bad := enough(middle); bad != nil {
				err = bad
			} else if suffices {
				high, best = middle, more
			} else {
				low = middle
			}
		}
		switch {
		case err != nil:
			return err
		case ok && one:
			fmt.Fprintf(out, "- %s, instead of %s\n", best[i], n.limits[i])
		case ok:
			fmt.Fprintln(out, "- all of these:")
			for _, l := range best {
				fmt.Fprintln(out, " ", l)
			}
		case one:
			fmt.Fprintf(out, "- more than %s alone does not help\n", n.limits[i])
		default:
			fmt.Fprintf(out, "- no limit: %d callers and their latency are too slow\n", p.callers)
		}
	}
	return nil
}

var number = regexp.MustCompile(`^(.*: )?([0-9.]+)`)

// times returns a limit of so many times the units, rounded up to two digits.
func times(l outbound.Limit, factor float64) (outbound.Limit, error) {
	text := l.String()
	at := number.FindStringSubmatchIndex(text)
	if at == nil {
		return l, nil
	}
	n, err := strconv.ParseFloat(text[at[4]:at[5]], 64)
	if err != nil {
		return l, err
	}
	digits := 1 - int(math.Floor(math.Log10(n*factor))) // behind the point
	n = math.Ceil(n*factor*math.Pow10(digits)-1e-9) * math.Pow10(-digits)
	return outbound.ParseLimit(text[:at[4]] + strconv.FormatFloat(n, 'f', max(0, digits), 64) + text[at[5]:])
}
