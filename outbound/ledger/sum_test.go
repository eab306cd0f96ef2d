package ledger_test

import (
	"bufio"
	"context"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/ledger"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/redisstore"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// counts are units by label and unit.
type counts map[string]float64

// api is what the API itself has counted, and what of it a killed process may not have.
type api struct {
	mu     sync.Mutex
	counts counts
	ended  map[*arrival]time.Time // zero while the call is in progress
}

type arrival struct {
	process, label string
	tokens         float64 // the larger of estimate and truth
}

func newAPI(rules ...outboundtest.Rule) (*api, *outboundtest.API) {
	a := &api{counts: counts{}, ended: map[*arrival]time.Time{}}
	return a, &outboundtest.API{Rules: rules, Latency: 5 * time.Millisecond, Next: a}
}

func (a *api) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	number := func(name string) float64 { n, _ := strconv.ParseFloat(r.Header.Get(name), 64); return n }
	x := &arrival{r.Header.Get("Process"), r.Header.Get("Label"), max(number("Used"), number("Estimate"))}
	a.mu.Lock()
	a.counts[x.label+" calls"]++
	a.counts[x.label+" tokens"] += number("Used")
	a.ended[x] = time.Time{}
	a.mu.Unlock()
	time.Sleep(time.Duration(number("Used")) * 100 * time.Microsecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[x] = time.Now()
}

func (a *api) calls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ended)
}

// inFlight returns what a process had in flight at a time, or later.
func (a *api) inFlight(process string, at time.Time) counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := counts{}
	for x, ended := range a.ended {
		if x.process == process && (ended.IsZero() || !ended.Before(at)) {
			c[x.label+" calls"]++
			c[x.label+" tokens"] += x.tokens
		}
	}
	return c
}

// process is a process of the fleet.
type process struct {
	name    string
	limiter outbound.Limiter
	client  *http.Client
	url     string
	late    time.Duration // after the end of some calls, until they are settled
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
	req, _ := http.NewRequestWithContext(context.WithoutCancel(ctx), "GET", p.url, nil)
	req.Header = http.Header{"Process": {p.name}, "Label": {label}, "Estimate": {fmt.Sprint(cost[1])}, "Used": {fmt.Sprint(used[1])}}
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
			time.Sleep(p.late)
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

var units = [4]string{"calls", "tokens"}

// An hour of three processes with cancelled, unsent, refused, dropped and late calls, of which one
// process is killed: the sum of the ledgers is the API's count, but for what that had in flight.
func TestLedger_SumIsTheAPIsCount(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	synctest.Test(t, func(t *testing.T) {
		counted, server := newAPI(outboundtest.SlidingLog(39, 10*time.Second))
		shared := store.NewMemory()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var fleet sync.WaitGroup
		var books [3]ledger.Ledger
		var processes [3]*process
		for i := range books {
			books[i] = ledger.Ledger{Name: "api", Units: units}
			b := outbound.Must(outbound.NewSharedBucket(shared, "api", outbound.PerSecond(4), outbound.Window(12_000, time.Minute).Of(1, "tokens")))
			p := &process{name: fmt.Sprint(i), limiter: books[i].Limiter(queue.New(b, queue.Config{MaxWait: 2 * time.Second}), labelOf), client: &http.Client{Transport: server}, url: "http://api.example.com/", late: 10 * time.Second, open: counts{}}
			processes[i] = p
			fleet.Go(func() { p.run(ctx, uint64(i)) })
		}
		time.Sleep(40 * time.Minute)
		processes[2].killed.Store(true)
		fleet.Wait()
		got := counts{}
		for i := range books {
			for _, r := range books[i].Rows() {
				got[r.Label+" "+r.Unit] += r.Used()
				errorIf(t, i == 0 && r.Unit == "tokens" && (r.Returned == 0 || r.Added == 0 || r.Refused == 0 || r.Waited == 0),
					"something never happened: %+v", r)
			}
		}
		errorIf(t, server.Report().Refused == 0, "the API has refused nothing")
		equal(t, got, counted.counts, processes[2].open)
	})
}

// Three processes share a bucket in Redis, and one is killed by SIGKILL: as above.
func TestLedger_ProcessesOnRedisSumUp(t *testing.T) {
	counted, handler := newAPI()
	server := httptest.NewServer(handler)
	defer server.Close()
	rdb := redistest.Shared(t)
	if !rdb.Real() {
		t.Skip("needs a redis-server")
	}
	key := fmt.Sprint("ledger-", rand.Uint64())
	var children [3]*child
	for i := range children {
		children[i] = start(t, rdb.Addr(), key, server.URL, i)
	}
	for counted.calls() < 600 {
		time.Sleep(10 * time.Millisecond)
	}
	asked := time.Now()
	rows := children[2].rows(t)
	check(t, children[2].Process.Kill()) // SIGKILL
	for _, c := range children[:2] {
		_, _ = fmt.Fprintln(c.in, "end")
		rows = append(rows, c.rows(t)...)
	}
	server.Close() // what the killed process has sent has ended, too
	got, inFlight := counts{}, counted.inFlight("2", asked)
	for _, r := range rows {
		used := must(strconv.ParseFloat(r[6], 64))
		if r[0] == "open" && r[3] != "2" {
			continue
		}
		map[string]counts{"api": got, "open": inFlight}[r[0]][r[1]+" "+r[2]] += used
	}
	equal(t, got, counted.counts, inFlight)
}

// child is a process of the test's own.
type child struct {
	*exec.Cmd
	in  interface{ Write([]byte) (int, error) }
	out *bufio.Reader
}

func start(t *testing.T, redis, key, url string, i int) *child {
	t.Helper()
	c := &child{Cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLedger_Process$")}
	c.Env = append(os.Environ(), "LEDGER_CHILD="+strings.Join([]string{redis, key, url, strconv.Itoa(i)}, " "))
	c.in, c.out, c.Stderr = must(c.StdinPipe()), bufio.NewReader(must(c.StdoutPipe())), os.Stderr
	check(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

// rows asks the child for its ledger.
func (c *child) rows(t *testing.T) [][]string {
	t.Helper()
	_, _ = fmt.Fprintln(c.in, "rows")
	var text strings.Builder
	for {
		line := must(c.out.ReadString('\n'))
		if line == "\n" {
			break
		}
		text.WriteString(line)
	}
	return must(csv.NewReader(strings.NewReader(text.String())).ReadAll())[1:]
}

// It is no test, but a process of TestLedger_ProcessesOnRedisSumUp.
func TestLedger_Process(t *testing.T) {
	args := strings.Fields(os.Getenv("LEDGER_CHILD"))
	if len(args) != 4 {
		t.Skip("it is started by another test")
	}
	book := ledger.Ledger{Name: "api", Units: units}
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	b := outbound.Must(outbound.NewSharedBucket(redisstore.New(rdb, redisstore.Config{}), args[1], outbound.PerSecond(400)))
	p := &process{name: args[3], limiter: book.Limiter(queue.New(b, queue.Config{MaxWait: 2 * time.Second}), labelOf), client: new(http.Client), url: args[2], open: counts{}}
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() { p.run(ctx, rand.Uint64()) })
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "end" {
			cancel()
			calls.Wait()
			continue
		}
		p.mu.Lock()
		var open strings.Builder // before the ledger is read
		for what, n := range p.open {
			label, unit, _ := strings.Cut(what, " ")
			fmt.Fprintf(&open, "open,%s,%s,%s,,,%g,,,\n", label, unit, p.name, n)
		}
		p.mu.Unlock()
		check(t, ledger.WriteCSV(os.Stdout, &book))
		fmt.Println(open.String())
	}
	os.Exit(0)
}
