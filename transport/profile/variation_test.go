package profile_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// facts are what a Signal says, without times that depend on the clock.
func facts(s *profile.Signal) map[string]bool {
	all := map[string]bool{}
	for _, p := range s.Policies() {
		for what, n := range map[string]float64{"limit": p.Limit, "remaining": p.Remaining, "window": p.Window.Seconds()} {
			if n > 0 || n == 0 && what == "remaining" {
				all[fmt.Sprint(what, " ", n)] = true
			}
		}
		all["a reset"] = all["a reset"] || p.Reset >= 0
	}
	all["throttled"], all["a wait"] = s.Throttled, s.Wait > 0
	maps.DeleteFunc(all, func(_ string, is bool) bool { return !is })
	return all
}

// A response that proxies, clocks or mistakes have changed says no more than the recorded one.
func TestRead_VariationsSayNoMore(t *testing.T) {
	lines := func(f func(v string) []string) func(*http.Response, *time.Time) {
		return func(resp *http.Response, _ *time.Time) {
			for name, old := range resp.Header {
				if name == "Date" || name == "Content-Type" || name == "Age" || name == "X-From-Cache" {
					continue
				}
				var all []string
				for _, v := range old {
					all = append(all, f(v)...)
				}
				resp.Header[name] = all
			}
		}
	}
	variations := map[string]func(*http.Response, *time.Time){
		"an early clock": func(_ *http.Response, now *time.Time) { *now = now.Add(-time.Hour) },
		"a late clock":   func(_ *http.Response, now *time.Time) { *now = now.Add(time.Hour) },
		"no Date":        func(resp *http.Response, _ *time.Time) { resp.Header.Del("Date") },
		"doubled":        lines(func(v string) []string { return []string{v, v} }),
		"joined":         lines(func(v string) []string { return []string{v + ", " + v} }),
		"empty":          lines(func(string) []string { return []string{""} }),
		"quoted":         lines(func(v string) []string { return []string{`"` + v + `"`} }),
		"blanks":         lines(func(v string) []string { return []string{"  " + v + "\t"} }),
	}
	for _, file := range fixtures {
		for _, c := range readFixtures(t, file) {
			p, _ := profile.ByName(c.Profile)
			read := func(change func(*http.Response, *time.Time)) map[string]bool {
				resp, at := c.response(), c.Now
				if change != nil {
					change(resp, &at)
				}
				s := p.Read(resp, at)
				_, _ = io.Copy(io.Discard, resp.Body)
				return facts(&s)
			}
			said := read(nil)
			for what, change := range variations {
				for fact := range read(change) {
					if !said[fact] {
						t.Errorf("%s, %s: %s", c.Case, what, fact)
					}
				}
			}
		}
	}
}
