package outboundtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	. "github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// subjects are the APIs that this project's texts recommend limits for, with the calls that the limits are for. The
// vendors' own pages have the rules.
var subjects = map[string]struct {
	api    func() *API
	method string
	path   string
	cost   outbound.Cost // of each call
	length int           // of each body
}{
	"github":    {func() *API { return GitHub() }, "GET", "/repos/golang/go", outbound.Cost{1}, 0},
	"stripe":    {func() *API { return Stripe() }, "POST", "/v1/charges", outbound.Cost{1}, 0},
	"shopify":   {func() *API { return ShopifyREST() }, "GET", "/admin/products.json", outbound.Cost{1}, 0},
	"openai":    {func() *API { return OpenAI() }, "POST", "/v1/responses", outbound.Cost{1, 100}, 400},
	"anthropic": {func() *API { return Anthropic() }, "POST", "/v1/messages", outbound.Cost{1, 100, 0}, 400},
	// developers.hubspot.com, "API usage guidelines": 100 in ten seconds that roll, and 250,000 a day.
	"hubspot": {func() *API {
		return &API{Rules: []Rule{SlidingLog(100, 10*time.Second), CalendarWindow(250_000, Day, time.UTC)}}
	}, "GET", "/crm/v3/objects/contacts", outbound.Cost{1}, 0},
	// developers.google.com/youtube, "Quota": 10,000 units a day, which begins at midnight in California.
	"youtube": {func() *API {
		pacific, _ := time.LoadLocation("America/Los_Angeles")
		units := func(*http.Request) float64 { return 2 }
		return &API{Rules: []Rule{CalendarWindow(10_000, Day, pacific).Of("units", units)}}
	}, "GET", "/youtube/v3/search", outbound.Cost{2}, 0},
}

// advice is what one place recommends for a vendor.
type advice struct {
	vendor, where string
	limits        []outbound.Limit
	profile       *profile.Profile
}

// Limits that a text of this project recommends for a vendor are never refused by that vendor's API, with 4, 50 and
// 200 callers. A text about a vendor that has no API above fails.
func TestRecommended_LimitsAreNeverRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	all := recommended(t, filepath.Join("..", ".."))
	errorIf(t, len(all) < 12, "only %d recommendations found", len(all))
	tried := map[string]bool{}
	for _, a := range all {
		one := fmt.Sprint(a.vendor, a.limits, a.profile)
		if tried[one] {
			continue
		}
		tried[one] = true
		t.Run(a.where+"/"+a.vendor, func(t *testing.T) {
			fatalIf(t, subjects[a.vendor].api == nil, "there is no API to try %v", a.limits)
			most := 1_500
			if a.vendor == "github" {
				most = 5_500 // more than in its hour
			}
			groups := map[int]int{4: 1_000, 50: 1_000, 200: most}
			if testing.Short() {
				groups = map[int]int{50: 300}
			}
			for callers, calls := range groups {
				synctest.Test(t, func(t *testing.T) { a.try(t, callers, calls, 150*time.Millisecond) })
			}
			synctest.Test(t, func(t *testing.T) { a.try(t, 200, 300, 10*time.Second) })
		})
	}
}

// Stripe's endpoints, each Within the total, are never refused, while all are busy and when two go on alone.
// Up to 5 calls that waited for the total leave with the 20 of a second.
func TestRecommended_EndpointsWithinATotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := Stripe()
		api.Latency = 150 * time.Millisecond
		total := queue.New(outbound.Must(outbound.NewBucket("total", outbound.PerSecond(100))), queue.Config{})
		endpoints := &outbound.Keyed[string]{New: func(endpoint string) (outbound.Limiter, error) {
			own, err := outbound.NewBucket(endpoint, outbound.PerSecond(20), outbound.InFlight(5))
			return outbound.Within(queue.New(own, queue.Config{}), total), err
		}}
		client := &http.Client{Transport: &transport.Transport{Base: api, For: func(req *http.Request) outbound.Limiter {
			return endpoints.For(req.URL.Path)
		}}}
		var wg sync.WaitGroup
		for i := range 160 {
			wg.Go(func() {
				for range 10 + 20*(i%8)/6 {
					resp, err := client.Post("https://api.example.com/v1/"+string(rune('a'+i%8)), "", nil)
					if err != nil {
						t.Error(err)
						return
					}
					_ = resp.Body.Close()
				}
			})
		}
		wg.Wait()
		r := api.Report()
		errorIf(t, r.Refused > 0, "%d of %d calls refused", r.Refused, r.Arrivals)
	})
}

// try makes calls by a client with these limits. Calls reach the API up to 10 ms late.
func (a advice) try(t *testing.T, callers, calls int, latency time.Duration) {
	s := subjects[a.vendor]
	api := s.api()
	api.Latency = latency
	var arrivals atomic.Int64
	client := &http.Client{Transport: &transport.Transport{
		Limiter: queue.New(outbound.Must(outbound.NewBucket(a.vendor, a.limits...)), queue.Config{}),
		Cost:    func(*http.Request) outbound.Cost { return s.cost },
		Profile: a.profile,
		Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			time.Sleep(time.Duration(arrivals.Add(1) * 7_919_993 % int64(10*time.Millisecond)))
			return api.RoundTrip(req)
		}),
	}}
	left := make(chan bool, calls)
	for range calls {
		left <- true
	}
	close(left)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range left {
				req, _ := http.NewRequest(s.method, "https://api.example.com"+s.path, strings.NewReader(strings.Repeat("x", s.length)))
				resp, err := client.Do(req)
				if errors.Is(err, outbound.ErrThrottled) {
					return // more than a day away: no API has refused it
				}
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
	if r := api.Report(); r.Refused > 0 || r.Admitted == 0 {
		t.Errorf("%v, %d callers: %d of %d calls refused", a.limits, callers, r.Refused, r.Arrivals)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var (
	line    = regexp.MustCompile(`(?m)^//\t(\w+): .*?((?:outbound\.)?(?:Per\w*|Window|Daily|Monthly|InFlight|Limit)[({].*?(?:,\n//\t {4}.*?)*)$`)
	buckets = regexp.MustCompile(`New(?:Shared)?Bucket\([^"\n]*"(\w+)`)
)

// recommended finds what the tree below root recommends: a line "Vendor: limits" in a comment, a bucket with a vendor's
// name in a comment, a page or an example, and the limits of the proxy.
func recommended(t *testing.T, root string) (all []advice) {
	var lists []string
	add := func(where, vendor, limits string) {
		name := strings.ToLower(vendor)
		p, ok := profile.ByName(name)
		if subjects[name].api == nil && !ok {
			return // no vendor
		}
		if !strings.Contains(where, "profile") {
			p = nil // only there the limits need the headers
		}
		all, lists = append(all, advice{vendor: name, where: where, profile: p}), append(lists, limits)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "example") {
			return err
		}
		if ext := filepath.Ext(name); ext != ".go" && ext != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		where := strings.TrimPrefix(path, root+string(filepath.Separator))
		for _, m := range line.FindAllSubmatch(text, -1) {
			add(where, string(m[1]), strings.ReplaceAll(string(m[2]), "\n//\t", " "))
		}
		for _, m := range buckets.FindAllSubmatchIndex(text, -1) {
			call := string(text[m[0]:])
			_, rest, _ := strings.Cut(call[:balanced(call)], ",")
			if strings.HasPrefix(call, "NewShared") {
				_, rest, _ = strings.Cut(rest, ",")
			}
			add(where, string(text[m[2]:m[3]]), strings.TrimSuffix(rest, ")"))
		}
		return err
	})
	must(t, err)
	for i, limits := range evaluated(t, root, lists) {
		all[i].limits = limits
	}
	const proxy = "examples/proxy/limits.json"
	text, err := os.ReadFile(filepath.Join(root, proxy))
	var apis map[string]struct {
		Limits  []outbound.Limit
		Profile string
	}
	fatalIf(t, err != nil || json.Unmarshal(text, &apis) != nil, "%s: %v", text, err)
	for name, api := range apis {
		if p, ok := profile.ByName(api.Profile); ok {
			all = append(all, advice{name, proxy, api.Limits, p})
		}
	}
	return all
}

// balanced returns the length of a call up to its last parenthesis.
func balanced(call string) int {
	depth := 0
	for i, c := range call {
		if c == '(' {
			depth++
		} else if c == ')' {
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(call)
}

// evaluated runs a program with lists of limits as texts have them, and returns what they are.
func evaluated(t *testing.T, root string, lists []string) (all [][]outbound.Limit) {
	t.Helper()
	const program = `package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	. "github.com/dripfeed/dripfeed/outbound"
)

// What the texts call so.
const requests, calls, tokens, input, output = 0, 0, 1, 1, 2

var (
	_          outbound.Limit
	zone       = time.UTC
	pacific, _ = time.LoadLocation("America/Los_Angeles")
)

func main() {
	_ = json.NewEncoder(os.Stdout).Encode([][]Limit{{%s}})
}
`
	file := filepath.Join(t.TempDir(), "main.go")
	must(t, os.WriteFile(file, fmt.Appendf(nil, program, strings.Join(lists, "},\n\t\t{")), 0o600))
	cmd := exec.Command("go", "run", file)
	cmd.Dir = root
	var faults strings.Builder
	cmd.Stderr = &faults
	out, err := cmd.Output()
	fatalIf(t, err != nil, "limits are unclear: %v\n%s%q", err, faults.String(), lists)
	must(t, json.Unmarshal(out, &all))
	return all
}
