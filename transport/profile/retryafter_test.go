package profile_test

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/transport/profile"
)

// The IsRetryAfter field of a profile may be a time since 1970.
func TestRetryAfter_OfAProfileMayBeATime(t *testing.T) {
	p := &profile.Profile{Name: "mine", Fields: []profile.Field{
		{Header: "X-Next-Call", Is: profile.IsRetryAfter}, {Header: "X-Pause", Is: profile.IsRetryAfter, In: time.Second}, {Header: "X-Window", Is: profile.IsWindow}, {Header: "X-Max", Is: profile.IsLimit},
	}}
	for _, c := range []struct {
		header, v string
		want      time.Duration
	}{
		{"X-Next-Call", "30", 30 * time.Second},
		{"X-Next-Call", "1788264060", 61 * time.Second},
		{"X-Next-Call", "1788264060.5", 61500 * time.Millisecond},
		{"X-Next-Call", "1788264060000", 61 * time.Second},
		{"X-Next-Call", "1788263940", 0}, // over
		{"X-Next-Call", "999999999", 999999999 * time.Second},
		{"X-Next-Call", "100000000000000", (1 << 31) * time.Second},
		{"X-Pause", "1788264060", 1788264060 * time.Second},
	} {
		if s := p.Read(answer(429, c.header, c.v), now); s.Wait != c.want {
			t.Errorf("%s: %s is a wait of %v, want %v", c.header, c.v, s.Wait, c.want)
		}
	}
	s := p.Read(answer(200, "X-Max", "9", "X-Window", "1788264060"), now)
	if all := s.Policies(); len(all) != 1 || all[0].Window != 1788264060*time.Second {
		t.Errorf("%+v", all)
	}
}

// Each line of a header may come from another server: of several the strictest values count.
func TestRead_HeaderTwiceTakesTheStricter(t *testing.T) {
	for name, lines := range map[string][]string{
		"draft 07":             {"RateLimit", "limit=9, remaining=0, reset=50", "RateLimit", "limit=10, remaining=9, reset=5"},
		"draft 07, in a line":  {"RateLimit", "limit=9, remaining=0, reset=50, limit=10, remaining=9, reset=5"},
		"draft 07, reversed":   {"RateLimit", "limit=10, remaining=9, reset=5", "RateLimit", "limit=9, remaining=0, reset=50"},
		"since draft 08":       {"RateLimit", `"a";r=0;t=50`, "RateLimit", `"a";r=9;t=5`, "RateLimit-Policy", `"a";q=9`, "RateLimit-Policy", `"a";q=10`},
		"three of no standard": {"X-RateLimit-Limit", "9", "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Remaining", "9", "X-RateLimit-Reset", "50", "X-RateLimit-Reset", "5"},
	} {
		s := profile.Generic.Read(answer(200, lines...), now)
		if all := s.Policies(); len(all) != 1 || all[0].Limit != 9 || all[0].Remaining != 0 || all[0].Reset != 50*time.Second || s.Wait != 50*time.Second {
			t.Errorf("%s: a wait of %v, %+v", name, s.Wait, all)
		}
	}
}

// RFC 9110 has seconds in Retry-After. A number that is a time close by cannot be such a wait,
// and several APIs send one; any other number is what the RFC says.
func TestRetryAfter_NumberMayBeATime(t *testing.T) {
	const day = 24 * time.Hour
	for v, want := range map[string]time.Duration{
		"1788264060": 61 * time.Second, "1788264060.5": 61500 * time.Millisecond, "1788264060000": 61 * time.Second,
		"1788264000": 0, "1788263940": 0, // over
		"1791633600": 39*day + time.Second, "1791806400": 1791806400 * time.Second, // in 39 days, and in 41
		"1784894400": 0, "1784635200": 1784635200 * time.Second, // 39 days ago, and 42
		"86400": day, "999999999": 999999999 * time.Second, "99999999999": forever, "100000000000000": forever,
	} {
		for _, header := range []string{"Retry-After", "X-RateLimit-Retry-After"} {
			if s := profile.Generic.Read(answer(429, header, v), now); s.Wait != want || !s.HasRetryAfter {
				t.Errorf("%s: %s is a wait of %v, want %v", header, v, s.Wait, want)
			}
		}
	}
	s := profile.Generic.Read(answer(429, "Retry-After", "1788264060, 30", "Retry-After-Ms", "45000"), now)
	if s.Wait != 61*time.Second || !s.Absolute {
		t.Errorf("of three: %+v, want 1m1s", s)
	}
}

// Until reads all forms of a point in time.
func TestResponse_Until(t *testing.T) {
	for v, want := range map[string]time.Duration{
		"1788264060": time.Minute, "1788264060.5": 60500 * time.Millisecond, "1788264060000": time.Minute,
		"2026-09-01T12:01:00Z": time.Minute, "Tue, 01 Sep 2026 12:01:00 GMT": time.Minute,
		"1788260000": 0, "2026-09-01T11:00:00Z": 0, // over
		"60": -1, "999999999": -1, "100000000000000": -1, "1m0s": -1, "-1788264060": -1, "soon": -1, "": -1,
	} {
		p := &profile.Profile{Name: "mine", Judge: func(r *profile.Response, _ *profile.Signal) {
			d, ok := r.Until(v)
			if ok != (want >= 0) || ok && d != want {
				t.Errorf("until %q: %v %v, want %v", v, d, ok, want)
			}
		}}
		p.Read(answer(429), now)
	}
}
