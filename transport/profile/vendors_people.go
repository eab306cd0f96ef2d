package profile

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Discord is the API of Discord (discord.com/developers, "Rate limits", 2026). The bucket names the
// policy; Discord counts several routes together in one. Scope is "user", "global" or "shared",
// which is a Lock: other users have used up a limit of the call's resource.
var Discord *Profile = discord

var discord = add(Profile{
	Name: "discord", Bodies: []Body{{Status: 429}},
	Fields:  headers(Field{}, "scope X-Ratelimit-Scope"),
	Members: headers(Field{}, "wait /retry_after"),
	Rules: []Rule{
		{In: "X-Ratelimit-Global /global", Words: "true", Scope: "global", Detail: "global"},
		{In: "X-Ratelimit-Scope", Words: "shared", Reason: Lock},
	},
})

// Twitter is the API of X (docs.x.com, "Rate limits", 2026): windows of 15 minutes for each
// endpoint, with resets in seconds since 1970, and some of a day, of the app and of the user.
// A response does not name its endpoint, so that one that is used up holds the limiter for up to a
// quarter of an hour: give each endpoint its own, by transport.ByRoute or transport.Discovered.
var Twitter *Profile = add(Profile{Name: "twitter", also: "twitterx x xtwitter"})

// Reddit is the Data API of Reddit (PRAW's reading of its headers, 2026): what remains, in
// fractions, and a reset in seconds from now, without a limit.
var Reddit *Profile = add(Profile{Name: "reddit", In: time.Second})

// Meta is the Graph API of Meta (developers.facebook.com/docs/graph-api/overview/rate-limiting,
// 2026). Policies are the parts, in percent, of an hourly budget, as JSON in headers, with the
// minutes until a refused business may call again. Refusals are 400 with one of the codes for
// limits, or without a code and with such a time.
var Meta *Profile = meta

var meta = add(Profile{
	Name: "meta", also: "facebook metagraph", Types: []string{"text/javascript"}, Judge: judgeMeta,
	Fields: headers(Field{}, `custom X-App-Usage custom X-Ad-Account-Usage
		custom X-Fb-Ads-Insights-Throttle custom X-Business-Use-Case-Usage`),
	Bodies: []Body{{Status: 400}, {Status: 403}, {Status: 429}},
	Rules: []Rule{
		{In: "/error/code", Words: "131056", Reason: Lock}, // one recipient gets too many messages
		{In: "/error/code", Words: "4|17|32|613|130429|800*", Reason: Rate},
	},
})

func judgeMeta(r *Response, s *Signal) {
	coded := r.JSON("error/code") != ""
	for _, f := range [...][2]string{{"X-App-Usage", "app"}, {"X-Ad-Account-Usage", "ad-account"},
		{"X-Fb-Ads-Insights-Throttle", "ads-insights"}, {"X-Business-Use-Case-Usage", ""}} {
		for line := range r.Lines(f[0]) {
			// {"call_count":…,…}, and the last {"id":[{"type":"ads_management",…},…],…}
			for _, object := range strings.SplitN(line, "{", maxPolicies+2) {
				object, _, whole := strings.Cut(object, "}")
				if !whole {
					continue
				}
				wait, refused := use([]byte("{"+object+"}"), f[1], s)
				if refused && !coded && (r.Status == 400 || r.Status == 403) {
					s.refuse(Rate)
				}
				if refused && s.Throttled && r.Status < 500 {
					s.Wait = max(s.Wait, wait)
				}
			}
		}
	}
	for i := range s.Policies() {
		// A budget refuses at 100 %, so another limit did, and this one's reset does not show when that
		// is over.
		if p := &s.Policies()[i]; s.Throttled && p.Name == "ad-account" && p.used < p.Limit {
			p.Reset = None
		}
	}
}

// use adds a policy of what Meta reports of one object. It returns how long that asks to wait, and
// whether Meta has refused the call, which may be so although the wait is too long to count.
func use(object []byte, name string, s *Signal) (wait time.Duration, refused bool) {
	p := NewPolicy(name)
	p.Unit, p.Window = "percent", time.Hour
	for v := find(object, "type", "estimated_time_to_regain_access", "reset_time_duration",
		"call_count", "total_cputime", "total_time", "acc_id_util_pct", "app_id_util_pct"); v.next(); {
		n, numeric := number(v.value)
		switch {
		case v.at == 0:
			p.Name = cmp.Or(p.Name, v.value)
		case !numeric, v.at < 3 && n == 0:
		case v.at == 1:
			p.Reset, refused = duration(n, time.Minute), true
		case v.at == 2:
			p.Reset = duration(n, time.Second)
		default:
			p.Limit, p.used = 100, max(p.used, n)
		}
	}
	if p.bound() {
		s.push(p)
	}
	return p.Wait(), refused
}

// Strava is the API of Strava (developers.strava.com, "Rate limits", 2026): the limits of a quarter
// of an hour and of a day, and more for reading. No header says that they end with quarters
// of an hour and at midnight, UTC.
var Strava *Profile = strava

var strava = add(Profile{Name: "strava", Fields: slices.Concat(stravaFields("", "X-Ratelimit-"), stravaFields("read-", "X-Readratelimit-"))})

func stravaFields(name, prefix string) []Field {
	list := "limit " + prefix + "Limit used " + prefix + "Usage"
	return append(headers(Field{Policy: name + "15min", Window: 15 * time.Minute, Item: 1, Aligned: true}, list),
		headers(Field{Policy: name + "day", Window: day, Item: 2, Aligned: true}, list)...)
}

// Riot are the APIs of Riot Games (developer.riotgames.com, "Rate limiting", 2026): lists of
// limits and of counts with their windows in seconds, for the app and for the method, in any
// order. Policies are named "app:120" or "method:10", by the window. Scope is which of them
// has refused; "service" is an overload.
var Riot *Profile = riot

var riot = add(Profile{
	Name: "riot", also: "riotgames",
	Fields: headers(Field{}, "custom X-App-Rate-Limit custom X-Method-Rate-Limit scope X-Rate-Limit-Type"),
	Rules:  []Rule{{In: "X-Rate-Limit-Type", Words: "service", Reason: Overload}},
	Judge: func(r *Response, s *Signal) {
		for _, f := range [...]struct{ header, name string }{{"X-App-Rate-Limit", "app:"}, {"X-Method-Rate-Limit", "method:"}} {
			for one := range items(r.list(f.header), ",") {
				limit, window, _ := strings.Cut(one, ":")
				n, ok := number(limit)
				if seconds, timed := number(window); ok && timed {
					s.Add(Policy{Name: f.name + window, Limit: n, Window: duration(seconds, time.Second), Remaining: None, Reset: None, used: None})
				}
			}
			for one := range items(r.list(f.header+"-Count"), ",") {
				count, window, _ := strings.Cut(one, ":")
				if p := s.policy(f.name + window); p != nil && p.used < 0 {
					p.used, _ = number(count)
				}
			}
		}
	},
})

// Dropbox is the API of Dropbox (developers.dropbox.com, "Performance guide", 2026), whose
// wait is in the body, too. A refusal because two calls write to one namespace is a Lock.
var Dropbox *Profile = dropbox

var dropbox = add(Profile{
	Name: "dropbox", Bodies: []Body{{Status: 429}},
	Members: headers(Field{}, "wait /error/retry_after detail /error/reason/.tag"),
	Rules:   []Rule{{In: "/error/reason/.tag", Words: "too_many_write_operations", Reason: Lock}},
})

// Binance is the Spot API of Binance (developers.binance.com, "Limits", 2026), which reports
// what is used, not what is allowed. 418 bans the address for as long as Retry-After says.
var Binance *Profile = add(Profile{Name: "binance", Refusals: []int{418}})
