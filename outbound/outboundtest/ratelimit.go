package outboundtest

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"
)

// RateLimitFields returns an API with the RateLimit and RateLimit-Policy fields of
// draft-ietf-httpapi-ratelimit-headers-11. Without rules it has "burst", 10 calls in any second,
// and "hourly", 1000 in an hour from the first on.
//
// Each rule that counts a call is a policy. Its unit names it, with a number from the second rule
// of a unit on: "calls" and "calls-2"; Rule.Of gives better names. RateLimit-Policy has the quota q
// and the window w. RateLimit has what remains, r, and the effective window t. That ends when all
// of the quota is there again, or with the Retry-After of a policy that refuses. Both windows are
// rounded up to seconds, all else is cut. A policy of
// InFlight has the unit qu="concurrent-requests" and no time. A rule by key has a partition key pk,
// a hash of the key. A refusal is 429 with a Retry-After, if the time is known, and a problem of
// the type quota-exceeded that names the violated policies.
func RateLimitFields(rules ...Rule) *API {
	return vendorAPI(answerRateLimitFields, rules,
		SlidingLog(10, time.Second).Of("burst", nil),
		FirstCallWindow(1000, time.Hour).Of("hourly", nil),
	)
}

func answerRateLimitFields(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	h := w.Header()
	var policies, limits, violated []string
	used := make(map[string]int)
	for i := range d.Counts {
		c := &d.Counts[i]
		name := c.Unit
		if used[name]++; used[name] > 1 {
			name = fmt.Sprintf("%s-%d", name, used[name])
		}
		quoted := quote(name)
		policy, limit := quoted+";q="+integer(c.Limit), quoted+";r="+integer(c.Remaining)
		if c.inFlight() {
			policy += `;qu="concurrent-requests"`
		} else {
			policy += ";w=" + wholeSeconds(c.Window)
			t := c.Reset
			if c.Broken && c.RetryAfter > 0 {
				t = c.RetryAfter // it must not be earlier than the end of t
			}
			limit += ";t=" + wholeSeconds(t)
		}
		if c.Key != "" {
			hash := fnv.New64a() // not the key itself, which may be a credential
			hash.Write([]byte(c.Key))
			pk := ";pk=:" + base64.StdEncoding.EncodeToString(hash.Sum(nil)) + ":"
			policy, limit = policy+pk, limit+pk
		}
		policies, limits = append(policies, policy), append(limits, limit)
		if c.Broken {
			violated = append(violated, name)
		}
	}
	if len(policies) > 0 {
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
		h.Set("RateLimit", strings.Join(limits, ", "))
	}
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	setRetryAfter(h, d.RetryAfter)
	h.Set("Content-Type", "application/problem+json")
	writeJSON(w, http.StatusTooManyRequests, object{
		"type":              "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title":             "Request cannot be satisfied as assigned quota has been exceeded",
		"violated-policies": violated,
	})
}

// integer returns units as an Integer of structured fields, which has 15 digits.
func integer(units float64) string { return whole(min(units, 999_999_999_999_999)) }

// quote returns a String of structured fields. It omits characters that such a String cannot hold.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			c = '?'
		}
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteByte('"')
	return b.String()
}
