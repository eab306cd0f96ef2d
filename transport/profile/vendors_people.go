package profile

import (
	"bytes"
	"slices"
	"strings"
	"time"
)

// Discord is the API of Discord (discord.com/developers, "Rate limits", 2026). The bucket
// names the policy; Discord counts several routes together in one. Scope is "user", "global"
// or "shared", which is a Lock: others have used up a limit of the resource that the call is
// about.
var Discord *Profile = discord

var discord = &Profile{
	Name: "discord",
	Fields: []Field{
		{Header: "X-Ratelimit-Limit", Is: IsLimit},
		{Header: "X-Ratelimit-Remaining", Is: IsRemaining},
		{Header: "X-Ratelimit-Reset-After", Is: IsReset, In: time.Second},
		{Header: "X-Ratelimit-Reset", Is: IsReset}, // this one has been wrong where the one above was right
		{Header: "X-Ratelimit-Bucket", Is: IsName},
		{Header: "X-Ratelimit-Scope", Is: IsScope},
	},
	Peeks: []Peek{{Status: 429}},
	Judge: func(r *Response, s *Signal) {
		if !s.Throttled {
			return
		}
		if strings.EqualFold(r.Get("X-Ratelimit-Global"), "true") {
			s.Scope = "global"
		}
		r.each(func(path []byte, value func() string) {
			switch string(path) {
			case "global":
				if value() == "true" {
					s.Scope = "global"
				}
			case "retry_after":
				s.askText(value())
			}
		}, "global", "retry_after")
		if s.Scope == "shared" {
			s.Reason = Lock
		}
	},
}

// turnIO is the API of Turn.io (whatsapp.turn.io, "Rate Limiting", 2026). The bucket names
// the policy: "general", "text" or "media".
var turnIO = &Profile{
	Name:   "turnio",
	Fields: append(limitFields("X-Ratelimit-", Field{}), Field{Header: "X-Ratelimit-Bucket", Is: IsName}),
}

// Twitter is the API of X (docs.x.com, "Rate limits", 2026): windows of 15 minutes for each
// endpoint, with resets in seconds since 1970, and some of a day, of the app and of the user.
var Twitter *Profile = twitter

var twitter = &Profile{
	Name: "twitter",
	Fields: slices.Concat(limitFields("X-Rate-Limit-", Field{}),
		limitFields("X-App-Limit-24hour-", Field{Policy: "app-24hour", Window: day}),
		limitFields("X-User-Limit-24hour-", Field{Policy: "user-24hour", Window: day})),
}

// Reddit is the Data API of Reddit (PRAW's reading of its headers, 2026): what remains, in
// fractions, and a reset in seconds from now, without a limit.
var Reddit *Profile = reddit

var reddit = &Profile{
	Name:   "reddit",
	Fields: limitFields("X-Ratelimit-", Field{In: time.Second}),
}

// Meta is the Graph API of Meta
// (developers.facebook.com/docs/graph-api/overview/rate-limiting, 2026). Policies are the
// parts, in percent, of an hourly budget, as JSON in headers, with the minutes until a refused
// business may come back. Refusals are 400 with one of the codes for limits, or without a code
// and with such a time.
var Meta *Profile = meta

var meta = &Profile{
	Name: "meta",
	Fields: []Field{
		{Header: "X-App-Usage", Is: IsCustom},
		{Header: "X-Ad-Account-Usage", Is: IsCustom},
		{Header: "X-Fb-Ads-Insights-Throttle", Is: IsCustom},
		{Header: "X-Business-Use-Case-Usage", Is: IsCustom},
	},
	Peeks: []Peek{{Status: 400}, {Status: 403}, {Status: 429}},
	Types: []string{"text/javascript"},
	Judge: judgeMeta,
}

func judgeMeta(r *Response, s *Signal) {
	code := r.JSON("error", "code")
	switch {
	case code == "131056": // one recipient gets too many messages
		s.refuse(Lock)
	case code == "4", code == "17", code == "32", code == "613", code == "130429",
		len(code) == 5 && strings.HasPrefix(code, "800"):
		s.refuse(Rate)
	}
	for line := range r.Lines("X-App-Usage") {
		use([]byte(line), "app", s)
	}
	for line := range r.Lines("X-Ad-Account-Usage") {
		use([]byte(line), "ad-account", s)
	}
	for line := range r.Lines("X-Fb-Ads-Insights-Throttle") {
		use([]byte(line), "ads-insights", s)
	}
	for line := range r.linesUpTo("X-Business-Use-Case-Usage", maxUsage) {
		// {"id":[{"type":"ads_management",…},…],…}
		f := finder{b: []byte(line), i: strings.IndexByte(line, '[')}
		for objects := 0; objects < maxPolicies && f.i >= 0 && f.i < len(f.b); {
			if f.b[f.i] != '{' {
				f.i++
				continue
			}
			from := f.i
			f.skip()
			objects++
			wait, refused := use(f.b[from:f.i], "", s)
			if refused && code == "" && (r.Status == 400 || r.Status == 403) {
				s.refuse(Rate)
			}
			if s.Throttled && r.Status < 500 {
				s.Wait = max(s.Wait, wait)
			}
		}
	}
	for i := range s.Policies() {
		// A budget refuses at 100 %, so another limit did, and this one's reset does not tell
		// when that is over.
		if p := &s.Policies()[i]; s.Throttled && p.Name == "ad-account" && p.used < p.Limit {
			p.Reset = None
		}
	}
}

const maxMembers = 16 // of one of Meta's objects, which have 6

// use adds a policy of what Meta tells of one object. It returns how long that asks to wait,
// and whether Meta has refused the call, which may be so although the wait is too long to
// count.
func use(object []byte, name string, s *Signal) (wait time.Duration, refused bool) {
	p := NewPolicy(name)
	p.Unit, p.Window = "percent", time.Hour
	f := finder{b: object}
	for members := 0; members < maxMembers; members++ {
		key, value := f.member()
		if key == nil {
			break
		}
		what := string(key)
		if what == "type" {
			if p.Name == "" {
				p.Name = text(value)
			}
			continue
		}
		if bytes.IndexByte(value, '\\') >= 0 { // to undo escapes takes long, and no number has one
			continue
		}
		switch n, ok := number(text(value)); {
		case !ok:
		case what == "call_count", what == "total_cputime", what == "total_time", what == "acc_id_util_pct", what == "app_id_util_pct":
			p.Limit, p.used = 100, max(p.used, n)
		case what == "estimated_time_to_regain_access" && n > 0:
			p.Reset, refused = duration(n, time.Minute), true
		case what == "reset_time_duration" && n > 0:
			p.Reset = duration(n, time.Second)
		}
	}
	if p.bound() {
		s.push(p)
	}
	return p.Wait(), refused
}

// Strava is the API of Strava (developers.strava.com, "Rate limits", 2026): the limits of a
// quarter of an hour and of a day, and others for reading.
var Strava *Profile = strava

var strava = &Profile{
	Name: "strava",
	Fields: []Field{
		{Header: "X-Ratelimit-Limit", Is: IsCustom},
		{Header: "X-Ratelimit-Usage", Is: IsCustom},
		{Header: "X-Readratelimit-Limit", Is: IsCustom},
	},
	Judge: func(r *Response, s *Signal) {
		for _, f := range [...]struct{ prefix, name string }{{"X-Ratelimit-", ""}, {"X-Readratelimit-", "read-"}} {
			quarter, daily, ok := strings.Cut(r.list(f.prefix+"Limit"), ",")
			usedQuarter, usedDaily, used := strings.Cut(r.list(f.prefix+"Usage"), ",")
			if !ok || !used {
				continue
			}
			s.Add(usage(f.name+"15min", usedQuarter, quarter, 15*time.Minute))
			s.Add(usage(f.name+"day", usedDaily, daily, day))
		}
	},
}

// usage returns a policy that tells its use and its limit.
func usage(name, used, limit string, window time.Duration) Policy {
	p := NewPolicy(name)
	p.used, _ = count(strings.Trim(used, " \t"))
	p.Limit, _ = count(strings.Trim(limit, " \t"))
	p.Window = window
	return p
}

// Riot are the APIs of Riot Games (developer.riotgames.com, "Rate limiting", 2026): lists of
// limits and of counts with their windows in seconds, for the app and for the method, in any
// order. Policies are named "app:120" or "method:10", by the window. Scope is which of them
// has refused; "service" is an overload.
var Riot *Profile = riot

var riot = &Profile{
	Name: "riot",
	Fields: []Field{
		{Header: "X-App-Rate-Limit", Is: IsCustom},
		{Header: "X-Method-Rate-Limit", Is: IsCustom},
		{Header: "X-Rate-Limit-Type", Is: IsScope},
	},
	Judge: func(r *Response, s *Signal) {
		if s.Throttled && s.Scope == "service" {
			s.Reason = Overload
		}
		for _, f := range [...]struct{ header, name string }{{"X-App-Rate-Limit", "app:"}, {"X-Method-Rate-Limit", "method:"}} {
			counts := r.list(f.header + "-Count")
			for one := range items(r.list(f.header), ",") {
				limit, window, _ := strings.Cut(one, ":")
				if seconds, ok := number(window); ok {
					s.Add(usage(f.name+window, countOf(counts, window), limit, duration(seconds, time.Second)))
				}
			}
		}
	},
}

// countOf returns the count with the given window from a list.
func countOf(list, window string) string {
	for one := range items(list, ",") {
		if count, w, _ := strings.Cut(one, ":"); w == window {
			return count
		}
	}
	return ""
}

// Dropbox is the API of Dropbox (developers.dropbox.com, "Performance guide", 2026), whose
// wait is in the body, too. A refusal because two calls write to one namespace is a Lock.
var Dropbox *Profile = dropbox

var dropbox = &Profile{
	Name:  "dropbox",
	Peeks: []Peek{{Status: 429}},
	Judge: func(r *Response, s *Signal) {
		r.each(func(path []byte, value func() string) {
			switch string(path) {
			case "error/retry_after":
				s.askText(value())
			case "error/reason/.tag":
				if s.Detail = value(); s.Detail == "too_many_write_operations" {
					s.Reason = Lock
				}
			}
		}, "error")
	},
}

// Binance is the Spot API of Binance (developers.binance.com, "Limits", 2026), which tells
// what is used, not what is allowed. 418 bans the address for as long as Retry-After says.
var Binance *Profile = binance

var binance = &Profile{Name: "binance", Refusals: []int{418}}
