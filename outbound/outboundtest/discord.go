package outboundtest

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Discord returns an API that behaves as Discord does towards one bot (its
// documentation as of 2026), or with other rules if some are given. Its own are:
//
//   - 5 calls in 5 s from the first on in each bucket. The path's kind of thing and its
//     channel, guild or webhook name the bucket. Reading and writing are two buckets.
//     All routes that write the same kind of thing share one, and only
//     X-RateLimit-Bucket shows that. Discord's real numbers differ by route, and it
//     does not publish them;
//   - "global": 50 calls in any second;
//   - a Penalty of an hour after 10,000 answers with 401, 403 or 429 in ten minutes. A
//     429 of the scope "shared" does not count. Discord does not publish how long the
//     real one is.
//
// A rule of "global" is the global limit, and one of "shared" is the limit of a resource
// that other bots use as well. Every other rule is a bucket's: the part of its key (see
// Rule.By) before the first colon is the bucket's name.
//
// Every answer, except refusals by the global limit and the penalty, has X-RateLimit-Limit,
// -Remaining, -Reset (Unix time with milliseconds), -Reset-After (seconds with up to 3 decimal
// places) and -Bucket. A refusal is 429 with X-RateLimit-Scope, a Retry-After in whole seconds and
// a body with the exact retry_after. Under a penalty it is a text with a Retry-After only; even the
// Via of all other answers is missing.
func Discord(rules ...Rule) *API {
	invalid := func(status int, h http.Header) bool {
		switch status {
		case http.StatusUnauthorized, http.StatusForbidden:
			return true
		case http.StatusTooManyRequests:
			return h.Get("X-RateLimit-Scope") != "shared"
		}
		return false
	}
	return vendorAPI(answerDiscord, rules,
		FirstCallWindow(5, 5*time.Second).By(discordBucket),
		SlidingLog(50, time.Second).Of("global", nil),
		Penalty(10_000, 10*time.Minute, time.Hour, invalid),
	)
}

func answerDiscord(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	unit := func(names ...string) *Count {
		return d.first(func(c *Count) bool {
			for _, name := range names {
				if c.Unit == name {
					return c.Broken
				}
			}
			return false
		})
	}
	h := w.Header()
	if unit("refusals") != nil {
		setRetryAfter(h, d.RetryAfter)
		http.Error(w, "error code: 1015", http.StatusTooManyRequests)
		return
	}
	h.Set("Via", "1.1 google")
	scope, message := "user", "You are being rate limited."
	global := unit("global") != nil
	switch {
	case global:
		scope = "global"
		h.Set("X-RateLimit-Global", "true")
	case unit("shared") != nil:
		scope, message = "shared", "The resource is being rate limited."
	}
	bucket := d.first(func(c *Count) bool { return c.Unit != "global" && c.Unit != "shared" && !c.inFlight() })
	if bucket != nil && !global {
		name, _, _ := strings.Cut(bucket.Key, ":")
		h.Set("X-RateLimit-Limit", whole(bucket.Limit))
		h.Set("X-RateLimit-Remaining", whole(bucket.Remaining))
		reset := d.At.Add(bucket.Reset)
		h.Set("X-RateLimit-Reset", fmt.Sprintf("%d.%03d", reset.Unix(), reset.Nanosecond()/1e6))
		h.Set("X-RateLimit-Reset-After", strconv.FormatFloat(milliseconds(bucket.Reset), 'f', -1, 64))
		h.Set("X-RateLimit-Bucket", name)
	}
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	h.Set("X-RateLimit-Scope", scope)
	setRetryAfter(h, d.RetryAfter)
	writeJSON(w, http.StatusTooManyRequests, object{"message": message, "retry_after": milliseconds(d.RetryAfter), "global": global})
}

// discordBucket returns the name of a call's bucket, as it is sent, and after a colon
// the channel, guild or webhook.
func discordBucket(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[1:]
		if len(parts) > 0 && len(parts[0]) > 1 && parts[0][0] == 'v' && digits(parts[0][1:]) {
			parts = parts[1:]
		}
	}
	major := ""
	if len(parts) > 1 && digits(parts[1]) {
		switch parts[0] {
		case "channels", "guilds", "webhooks":
			major = parts[1]
		}
	}
	kind := "write"
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		kind = "read"
	}
	hash := fnv.New128a()
	hash.Write([]byte(kind))
	for _, part := range parts {
		if !digits(part) { // an id names a thing, not a kind of thing
			hash.Write([]byte("/" + part))
		}
	}
	return fmt.Sprintf("%x:%s", hash.Sum(nil), major)
}

// digits reports whether a part of a path is an id.
func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
