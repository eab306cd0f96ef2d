package profile

import (
	"math"
	"slices"
	"strings"
	"time"
)

// GitHub is the REST and the GraphQL API of GitHub (docs.github.com, "Rate limits for the REST
// API", 2026). The resource names the policy, such as "core" or "search". A 403 is a refusal if the
// headers or the text name a limit, and a GraphQL response 200 is one with the error RATE_LIMITED.
// Scope is "primary" for the hourly limit, and "secondary" for the limits on bursts. Those leave
// the hourly one untouched, and only the text of the body mentions them, JSON or a page of HTML;
// without Retry-After they ask for a minute.
//
// Each resource has a limit of its own. Behind one limiter for all, a search that leaves
// nothing of its 30 a minute holds every call until the reset: give each resource a limiter,
// by transport.Discovered and the header X-RateLimit-Resource, or by transport.ByRoute. The headers
// report the hourly limit, so a limiter need not count it. It must keep the secondary limits, which
// count a write as 5 points:
//
//	GitHub: 900 points a minute, 100 in flight   PerMinute(900), InFlight(100)
//
// A 304 with a token is free by the hourly limit. The secondary limits may count it.
var GitHub *Profile = gitHub

var gitHub = add(Profile{
	Name: "github", also: "githubgraphql githubrest", Types: []string{"text/html"},
	Bodies: []Body{{Status: 403}, {Status: 429}, {Status: 200, Header: "X-Ratelimit-Resource", Value: "graphql"}},
	Free:   []int{304},
	Rules: []Rule{
		{In: "/message /errors/message", Words: "*secondary rate limit*|*abuse detection*", Scope: "secondary"},
		{In: "<title> <p>", Words: "*secondary rate limit*|*abuse detection*|rate limit*", Scope: "secondary"},
		{In: "/documentation_url", Words: "secondary-rate-limits|abuse-rate-limits", Scope: "secondary"},
		{In: "/message /errors/message", Words: "*rate limit exceeded*|*rate limit already exceeded*", Scope: "primary"},
		{In: "/errors/type /errors/code /errors/extensions/code", Words: "*rate_limit*", Scope: "primary"},
	},
	Judge: func(r *Response, s *Signal) {
		p, spent := s.spent()
		if s.Free { // only with a token: other callers have 60 calls an hour
			s.Free = p == nil || p.Limit > 60
			return
		}
		secondary, primary := s.Scope == "secondary", s.Scope == "primary"
		switch {
		case r.Status >= 500: // the API has troubles of its own
			return
		case secondary, r.Status != 200 && !spent && !primary && (s.HasRetryAfter || r.Status == 429):
			s.Scope = "secondary"
			s.ask(time.Minute, !spent)
		case primary, s.Throttled, r.Status != 200 && spent && r.JSON("message") == "" && r.JSON("errors/message") == "":
			if s.Scope = "primary"; p != nil {
				s.Wait = p.Wait() // even if some remain: the call may cost more
			}
		default:
			return // forbidden for other reasons
		}
		s.refuse(Rate)
	},
})

// Linear is the GraphQL API of Linear (linear.app/developers, "Rate limiting", 2026): leaky buckets
// of requests and of complexity. Each refills at its limit per hour, with resets in milliseconds
// since 1970 that a success does not wait for. A 400 with the code RATELIMITED is a refusal. It
// waits until a request and the complexity of the query fit, and 10 s at least: otherwise a program
// that retries for every unit would be refused with the next one again. Some queries have a limit
// of their own, the policy "endpoint-requests": a refusal by that one alone is a Lock with the
// Scope "endpoint", whose Detail is the query.
var Linear *Profile = linear

var linear = add(Profile{
	Name: "linear", Bodies: []Body{{Status: 400}}, Kind: Bucket,
	Rules: []Rule{{In: "/errors/extensions/code", Words: "ratelimited"}},
	Judge: func(r *Response, s *Signal) {
		if !s.Throttled || r.Status >= 500 {
			return
		}
		cost, told := number(first(r.Get("X-Complexity")))
		if !told {
			cost = 10_000 // the complexity of the largest query that Linear allows
		}
		wait := s.policy("requests").refills(1, time.Hour)
		if p := s.policy("complexity"); p != nil && (told || p.Remaining == 0) {
			wait = max(wait, p.refills(cost, time.Hour))
		}
		if wait > 0 {
			s.ask(max(wait, 10*time.Second), true)
		} else if endpoint := s.policy("endpoint-requests"); endpoint != nil && endpoint.Remaining == 0 {
			s.Reason, s.Scope, s.Detail = Lock, "endpoint", r.Get("X-Ratelimit-Endpoint-Name")
			s.Wait = endpoint.Wait()
		}
	},
})

// refills returns how long until n units, or the limit if that is less, are free, if the limit is
// freed evenly within a period. It is 0 if they are free, or if it is unknown.
func (p *Policy) refills(n float64, period time.Duration) time.Duration {
	if p == nil || p.Limit <= 0 || p.Remaining < 0 {
		return 0
	}
	return duration((min(n, p.Limit)-p.Remaining)/p.Limit, period)
}

// Slack is the Web API of Slack (docs.slack.dev, "Rate limits", 2026), which sends
// Retry-After and nothing else. Limits are per method and workspace.
var Slack *Profile = add(Profile{Name: "slack"})

// Notion is the API of Notion (developers.notion.com, "Request limits", 2026): Retry-After,
// and the limit that was exceeded in the body.
var Notion *Profile = notion

var notion = add(Profile{
	Name: "notion", Bodies: []Body{{Status: 429}, {Status: 529}},
	Members: headers(Field{}, "detail /additional_data/rate_limit_reason"),
	Rules:   []Rule{{In: "/code", Words: "service_overload", Reason: Overload}},
})

// Airtable is the Web API of Airtable (support.airtable.com, "Managing API call limits", 2026).
// After a 429 it is silent for 30 seconds, which is in no header. The monthly limit is a Quota.
var Airtable *Profile = airtable

var airtable = add(Profile{
	Name: "airtable", Penalty: 30 * time.Second, Bodies: []Body{{Status: 429}},
	Rules: []Rule{{In: "/errors/error /error/type", Words: "*billing_limit*", Reason: Quota}},
})

// Monday is the GraphQL API of monday.com (developer.monday.com, "Rate limits", 2026). It has
// limits on complexity, calls per minute and day, and calls in flight, and may refuse with a 200
// whose error has a code. A query above the maximum cost, or above the whole budget, can never be
// admitted: with a 200 it counts as a success, and with a 429 as a Lock.
var Monday *Profile = monday

var monday = add(Profile{
	Name: "monday", also: "mondaycom", Bodies: []Body{{Status: 200}, {Status: 429}},
	Members: headers(Field{}, "wait /errors/extensions/retry_in_seconds wait /retry_in_seconds"),
	Rules: []Rule{
		{In: mondayCodes, Words: "*daily*", Reason: Quota},
		{In: mondayCodes, Words: "*concurrency*", Reason: Concurrency},
		{In: mondayCodes, Words: "complexity*|*rate_limit*|*limit_exceeded*|*ip_rate*", Reason: Rate},
		{Status: 429, In: mondayCodes, Words: "maxcomplexity*", TooLarge: true}, // 5M for a single query
		{Status: 429, In: mondayCodes, Words: "*"},
	},
	Judge: func(r *Response, s *Signal) {
		codes, cost, budget := 0, 0.0, math.Inf(1)
		v := find(r.Body, "errors/extensions/code", "error_code",
			// developer.monday.com/api-reference/changelog/hotfix-updated-complexity-budget-exhausted-error
			"errors/extensions/complexity", "errors/extensions/complexity_budget_limit")
		for v.next() {
			switch n, numeric := number(v.value); {
			case v.at < 2:
				codes++
			case v.at == 2:
				cost = n
			case numeric:
				budget = n
			}
		}
		// With several errors it is unknown whose numbers these are, and they may be cut off.
		switch cut := v.depth > 0; {
		case s.Reason != Rate:
		case r.Status == 200 && (codes == 1 && cost > budget || cut):
			s.Throttled, s.Reason, s.Detail, s.RetryAfter, s.HasRetryAfter = false, Unknown, "", 0, false
		case codes == 1 && cost > budget:
			s.Reason, s.TooLarge = Lock, true
		}
	},
})

const mondayCodes = "/errors/extensions/code /error_code"

// Zoom is the API of Zoom (developers.zoom.us, "Rate limits", 2026). The label of the
// endpoint names the policy, such as "Light"; the limit of the day is a Quota and ends at a
// point in time in Retry-After.
var Zoom *Profile = zoom

var zoom = add(Profile{
	Name: "zoom", Bodies: []Body{{Status: 429}},
	Fields: append(limitFields("X-Ratelimit-", Field{}),
		headers(Field{}, "name X-Ratelimit-Category detail X-Ratelimit-Type")...),
	Rules: []Rule{{Status: 429, In: "X-Ratelimit-Type /message", Words: "*daily*", Reason: Quota}},
})

// Jira is the API of Jira Cloud (developer.atlassian.com, "Rate limiting", 2026).
// Beta-RateLimit reports the hourly quota of points, and X-RateLimit at the same time the limit
// on requests per second. Detail is the header RateLimit-Reason. A refusal by the limit on
// bursts is about one method of one endpoint ("Build an app that respects rate limits"): a
// Lock with the Scope "endpoint", unless a quota is used up, too. A transport for such an
// endpoint alone has an OnSignal that turns the Lock into Rate.
var Jira *Profile = jira

var jira = add(Profile{
	Name: "jira", also: "atlassian confluence confluencecloud jiracloud",
	Fields: append(headers(Field{Kind: Bucket, Unit: "points"}, "ratelimit Beta-Ratelimit policy Beta-Ratelimit-Policy"),
		headers(Field{}, "detail Ratelimit-Reason")...),
	Rules: []Rule{
		{Status: 429, In: "Ratelimit-Reason", Words: "*quota*", Reason: Quota},
		{Status: 429, In: "Ratelimit-Reason", Words: "*per-issue*", Reason: Lock}, // one issue gets too many writes
	},
	Judge: func(r *Response, s *Signal) {
		spent := slices.ContainsFunc(s.Policies(), func(p Policy) bool { return p.Name != "" && p.Remaining == 0 })
		// developer.atlassian.com/cloud/jira/platform/build-an-app-that-respects-rate-limits
		if r.Status == 429 && s.Reason == Rate && strings.Contains(strings.ToLower(s.Detail), "burst") && !spent {
			s.Reason, s.Scope = Lock, "endpoint"
		}
	},
})
