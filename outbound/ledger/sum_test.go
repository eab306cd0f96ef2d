package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// counts are units by label and unit.
type counts map[string]float64

// api is what the API itself has counted.
type api struct {
	mu     sync.Mutex
	counts counts
}

func (a *api) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	label := r.Header.Get("Label")
	used, _ := strconv.ParseFloat(r.Header.Get("Used"), 64)
	a.mu.Lock()
	a.counts[label+" calls"]++
	a.counts[label+" tokens"] += used
	a.mu.Unlock()
	time.Sleep(time.Duration(used) * 100 * time.Microsecond)
}

// process is a process of the fleet.
type process struct {
	limiter outbound.Limiter
	client  *http.Client
	killed  atomic.Bool

	mu   sync.Mutex
	open counts // calls that are not yet settled, of those that will be
}

// add adds a call to the open ones, or takes it out.
func (p *process) add(label string, tokens, sign float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[label+" calls"] += sign
	p.open[label+" tokens"] += sign * tokens
}

// run makes calls until ctx ends: some are cancelled, some never sent, some dropped without Done,
// some settled late, and many more than once.
func (p *process) run(ctx context.Context, seed uint64) {
	var callers, settles sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil && !p.killed.Load() {
				p.call(context.WithValue(context.Background(), labelKey{}, fmt.Sprint("tenant-", r.IntN(5))), r, &settles)
			}
		})
	}
	callers.Wait()
	settles.Wait()
}

func (p *process) call(ctx context.Context, r *rand.Rand, settles *sync.WaitGroup) {
	cost, used, kind := outbound.Cost{1, float64(10 + r.IntN(90))}, outbound.Cost{1, float64(r.IntN(120))}, r.IntN(20)
	if r.IntN(5) == 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Millisecond)
		defer cancel()
	}
	label, most := labelOf(ctx), max(cost[1], used[1])
	p.add(label, most, 1) // it may be admitted from now on
	permit, err := p.limiter.Acquire(ctx, cost)
	if err != nil {
		p.add(label, most, -1)
		time.Sleep(10 * time.Millisecond)
		return
	}
	if kind == 0 { // never sent
		permit.Settle(outbound.Cost{})
		permit.Done()
		p.add(label, most, -1)
		return
	}
	if kind == 1 { // the program forgets it
		used = cost
	}
	req, _ := http.NewRequestWithContext(context.WithoutCancel(ctx), "GET", "http://api.example.com/", nil)
	req.Header = http.Header{"Label": {label}, "Used": {fmt.Sprint(used[1])}}
	res, err := p.client.Do(req)
	if err != nil || p.killed.Load() {
		return
	}
	settle := func() {
		permit.Settle(used)
		permit.Settle(outbound.Cost{9, 9}) // has no effect
		p.add(label, most, -1)
	}
	if kind == 1 && res.StatusCode == 200 { // else its cost is one that the API has not counted
		p.add(label, most, -1)
		return
	}
	_ = res.Body.Close()
	if res.StatusCode != 200 { // which the API does not count
		permit.Refused(0)
		used = outbound.Cost{}
	}
	if kind == 2 {
		permit.Done()
		settles.Go(func() {
			time.Sleep(10 * time.Second)
			settle()
		})
		return
	}
	settle()
	permit.Done()
}

// equal checks what ledgers say against the API's count, which may differ by what was in flight.
func equal(t *testing.T, got, want, inFlight counts) {
	t.Helper()
	total, slack := 0., 0.
	for what := range got {
		if _, ok := want[what]; !ok {
			t.Errorf("%s: %g, and the API has none", what, got[what])
		}
	}
	for what, n := range want {
		total, slack = total+n, slack+inFlight[what]
		if d := got[what] - n; d > inFlight[what]+1e-6 || d < -inFlight[what]-1e-6 {
			t.Errorf("%s: the ledgers have %g, the API %g, with %g in flight", what, got[what], n, inFlight[what])
		}
	}
	if t.Logf("%g units, %g of them in flight", total, slack); len(want) != 10 || total < 1000 || slack > total/10 {
		t.Errorf("%d labels and units, %g units, %g in flight", len(want), total, slack)
	}
}

// An hour of three processes with cancelled, unsent, refused, dropped and late calls, of which one
// process is killed: the sum of the ledgers is the API's count, but for what that had in flight.
func TestLedger_SumIsTheAPIsCount(t *testing.T) {
	length := time.Hour
	if testing.Short() {
		length /= 6
	}
	synctest.Test(t, func(t *testing.T) {
		counted := &api{counts: counts{}}
		server := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(39, 10*time.Second)}, Latency: 5 * time.Millisecond, Next: counted}
		shared := store.NewMemory()
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		var fleet sync.WaitGroup
		var books [3]ledger.Ledger
		var processes [3]*process
		for i := range books {
			books[i] = ledger.Ledger{Name: "api", Units: [4]string{"calls", "tokens"}}
			b := outbound.Must(outbound.NewSharedBucket(shared, "api", outbound.PerSecond(4), outbound.Window(12_000, time.Minute).Of(1, "tokens")))
			limiter := books[i].Limiter(queue.New(b, queue.Config{MaxWait: 2 * time.Second}), labelOf)
			processes[i] = &process{limiter: limiter, client: &http.Client{Transport: server}, open: counts{}}
			fleet.Go(func() { processes[i].run(ctx, uint64(i)) })
		}
		time.Sleep(length * 2 / 3)
		processes[2].killed.Store(true)
		fleet.Wait()
		got := counts{}
		for i := range books {
			for _, r := range books[i].Rows() {
				got[r.Label+" "+r.Unit] += r.Used()
				if i == 0 && r.Unit == "tokens" && (r.Returned == 0 || r.Added == 0 || r.Refused == 0 || r.Waited == 0) {
					t.Errorf("something never happened: %+v", r)
				}
			}
		}
		if r := server.Report(); r.Refused == 0 {
			t.Error("the API has refused nothing")
		}
		equal(t, got, counted.counts, processes[2].open)
	})
}
