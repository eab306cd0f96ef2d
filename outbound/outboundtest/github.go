package outboundtest

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// gitHubDocs is the page in GitHub's refusals.
const gitHubDocs = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"

// GitHub returns an API that behaves as GitHub does towards one user (its
// documentation as of 2026), or with other rules if some are given. Its own are:
//
//   - primary limits, in windows that start with a call: 5000 an hour of "core", 30 a
//     minute of "search" (paths below /search), 5000 an hour of "graphql" (the path
//     /graphql);
//   - secondary limits: 100 calls in flight, and "points" in any minute, 900 of REST and 2000 of
//     GraphQL. A GET, HEAD or OPTIONS takes 1, any other call 5, and GraphQL 1.
//
// A rule of "points", InFlight and Penalty are secondary limits. Every other rule is a
// primary limit, and its unit is the resource ("core" for "calls"). There are no limits
// on content or processor time.
//
// Every answer carries X-RateLimit-Limit, -Remaining, -Used, -Reset and -Resource for the resource
// of the call. Reset is Unix time, cut to whole seconds. A caller that waits for Reset - Date may
// be up to a second early, as with the real GitHub. A primary refusal is 403 without a Retry-After
// (GraphQL: 200 with RATE_LIMITED in the body). A secondary one is 403, or 429 for calls in flight,
// with a Retry-After (60 if the time is unknown) and usually a Remaining above 0. Only the text of
// the body distinguishes it from a missing permission.
func GitHub(rules ...Rule) *API {
	graphQL := func(path string) bool { return path == "/graphql" || path == "/api/graphql" }
	search := func(path string) bool { return strings.HasPrefix(path, "/search/") }
	core := func(path string) bool { return !graphQL(path) && !search(path) }
	rest := func(path string) bool { return !graphQL(path) }
	points := func(r *http.Request) float64 {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			return 1
		}
		return 5
	}
	return vendorAPI(answerGitHub, rules,
		FirstCallWindow(5000, time.Hour).Of("core", nil).By(pathIs("core", core)),
		FirstCallWindow(30, time.Minute).Of("search", nil).By(pathIs("search", search)),
		FirstCallWindow(5000, time.Hour).Of("graphql", nil).By(pathIs("graphql", graphQL)),
		InFlight(100),
		SlidingLog(900, time.Minute).Of("points", points).By(pathIs("rest", rest)),
		SlidingLog(2000, time.Minute).Of("points", nil).By(pathIs("graphql", graphQL)),
	)
}

func answerGitHub(w http.ResponseWriter, r *http.Request, d *Decision, next http.Handler) {
	secondary := func(c *Count) bool { return c.Unit == "points" || c.Unit == "refusals" || c.inFlight() }
	resource := ""
	if c := d.first(func(c *Count) bool { return !secondary(c) }); c != nil {
		resource = c.Unit
		if resource == "calls" {
			resource = "core"
		}
		h := w.Header()
		h.Set("X-RateLimit-Limit", whole(c.Limit))
		h.Set("X-RateLimit-Remaining", whole(c.Remaining))
		h.Set("X-RateLimit-Used", whole(c.Limit-c.Remaining))
		h.Set("X-RateLimit-Reset", strconv.FormatInt(d.At.Add(c.Reset).Unix(), 10))
		h.Set("X-RateLimit-Resource", resource)
	}
	if !d.Refused {
		next.ServeHTTP(w, r)
		return
	}
	if no := d.first(func(c *Count) bool { return c.Broken && secondary(c) }); no != nil {
		wait, status := d.RetryAfter, http.StatusForbidden
		if wait == 0 {
			wait = time.Minute
		}
		if no.inFlight() {
			status = http.StatusTooManyRequests
		}
		setRetryAfter(w.Header(), wait)
		writeJSON(w, status, object{
			"message":           "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
			"documentation_url": gitHubDocs + "#about-secondary-rate-limits",
		})
		return
	}
	const message = "API rate limit exceeded for user ID 1."
	if resource == "graphql" {
		writeJSON(w, http.StatusOK, object{"errors": []object{{"type": "RATE_LIMITED", "message": message}}})
		return
	}
	writeJSON(w, http.StatusForbidden, object{"message": message, "documentation_url": gitHubDocs})
}
