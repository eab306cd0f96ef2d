package profile_test

import (
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

var numbers = regexp.MustCompile(`([:\[]\s*)(-?[0-9][0-9.]*)(\s*[,}\]])`)

// What proxies, clocks and other encoders do to a response never makes it say more: a refusal that
// was none, or a longer wait than the response has, or than it has without the part that changed.
func TestRead_VariationsReadNoMore(t *testing.T) {
	for _, file := range fixtures {
		for _, c := range readFixtures(t, file) {
			p, _ := profile.ByName(c.Profile)
			read := func(now time.Time, headers func(http.Header), body func(string) string) profile.Signal {
				changed := c
				if body != nil {
					changed.Body = body(c.Body)
				}
				resp := changed.response()
				kind := resp.Header["Content-Type"]
				if c.Body != "" {
					kind = c.response().Header["Content-Type"]
				}
				if headers != nil {
					headers(resp.Header)
				}
				if kind != nil {
					resp.Header["Content-Type"] = kind
				}
				return p.Read(resp, now)
			}
			whole := read(c.Now, nil, nil)
			check := func(name string, got profile.Signal, least ...profile.Signal) {
				throttled, wait := whole.Throttled, whole.Wait
				for _, s := range least {
					throttled, wait = throttled || s.Throttled, max(wait, s.Wait)
				}
				if got.Throttled && !throttled || got.Wait > wait {
					t.Errorf("%s: %s: throttled %v for %v, want at most %v for %v", c.Case, name, got.Throttled, got.Wait, throttled, wait)
				}
			}
			each := func(change func(v []string) []string) func(http.Header) {
				return func(h http.Header) {
					for name, v := range h {
						if name != "Date" {
							h[name] = change(v)
						}
					}
				}
			}
			one := func(change func(v string) string) func(http.Header) {
				return each(func(v []string) (all []string) {
					for _, line := range v {
						all = append(all, change(line))
					}
					return all
				})
			}
			if at, err := http.ParseTime(c.Date); err == nil {
				for _, skew := range []time.Duration{-25 * time.Hour, -time.Hour, -time.Second, time.Second, time.Hour, 25 * time.Hour} {
					check("a clock that is wrong by "+skew.String(), read(c.Now.Add(skew), nil, nil))
				}
				check("without Date", read(at, func(h http.Header) { h.Del("Date") }, nil))
			}
			check("doubled", read(c.Now, each(func(v []string) []string { return append(v[:len(v):len(v)], v...) }), nil))
			bare := read(c.Now, func(h http.Header) {
				for name := range h {
					if name != "Date" {
						delete(h, name)
					}
				}
			}, nil)
			check("joined", read(c.Now, one(func(v string) string { return v + ", " + v }), nil), bare)
			check("empty", read(c.Now, one(func(string) string { return "" }), nil), bare)
			check("quoted", read(c.Now, one(strconv.Quote), nil), bare)
			if c.Body == "" {
				continue
			}
			without := read(c.Now, nil, func(string) string { return "" })
			check("a body that comes twice", read(c.Now, nil, func(b string) string { return b + b }), without)
			check("numbers as strings", read(c.Now, nil, func(b string) string { return numbers.ReplaceAllString(b, `$1"$2"$3`) }), without)
			for cut := 1; cut < 8; cut++ {
				check("a body that is cut off", read(c.Now, nil, func(b string) string { return b[:len(b)*cut/8] }), without)
			}
		}
	}
}
