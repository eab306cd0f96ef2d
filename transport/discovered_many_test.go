package transport

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A host that takes all limiters, and has refused a call of each, leaves every other host one
// limiter: for the routes and names that have none of their own yet. That limiter hears what
// the host answers, as any other.
func TestDiscovered_FullLeavesEachHostOneLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hourly()
		d.Limiters.Max = 10
		status, name := 200, ""
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "evil.test" {
				return answer(429, nil, "Retry-After", "3000", "X-Bucket", req.URL.Path)(req)
			}
			return answer(status, nil, "Retry-After", "600", "X-Bucket", name)(req)
		})}
		check := func(path, full string, held bool) {
			t.Helper()
			err := fetch(t, rt, "https://api.test/"+path)
			var no *outbound.ThrottledError
			if full == "" && err != nil || full != "" && (!errors.As(err, &no) || no.Key != full || no.Held != held) {
				t.Errorf("%s: %v, want no room in %q, held: %v", path, err, full, held)
			}
		}
		check("old", "", false)
		for i := range 20 {
			_ = fetch(t, rt, fmt.Sprintf("https://evil.test/%d", i))
		}
		if n := d.Limiters.Len(); n != 10 {
			t.Fatalf("%d limiters, want all 10 to be taken", n)
		}
		name = "ab"
		check("old", "", false) // this route has a limiter of its own, and now a name that has none
		check("new", "", false)
		check("newer", "", false)
		check("newer", "api.test", false) // two calls an hour, as every limiter
		time.Sleep(30 * time.Minute)
		check("old", "", false) // this call is charged to both
		check("new", "api.test", false)
		time.Sleep(30 * time.Minute)
		status = 429
		check("new", "", false)
		check("old", "api.test", true)
		check("newer", "api.test", true)
		time.Sleep(3 * time.Hour) // all limiters are idle and forgotten
		status = 200
		check("new", "", false)
		check("newer", "", false)
		check("newer", "api.test=ab", false)
	})
}

func TestDiscovered_HostLimiterHasTheLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hourly()
		d.Limiters.Max = 1
		d.Limiters.Label = func(key string) string { return "label of " + key }
		rt := &Transport{For: d.For, Base: answer(200, nil)}
		for _, path := range []string{"own", "none", "none"} {
			if err := fetch(t, rt, "https://api.test/"+path); err != nil {
				t.Fatal(err)
			}
		}
		var full *outbound.ThrottledError
		if err := fetch(t, rt, "https://api.test/none"); !errors.As(err, &full) || full.Key != "label of api.test" {
			t.Errorf("%v, want the label in the place of the key", err)
		}
	})
}
