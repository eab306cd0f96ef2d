package profile

import (
	"cmp"
	"net/http"
	"slices"
	"time"
)

// A Profile describes how one API reports its limits, in addition to what the package reads from
// every response. It is data and at most one small function. A nil *Profile is [Generic]. Profiles
// are safe for concurrent use. Do not change one once it is in use.
type Profile struct {
	// Name is the API's name, in lower case.
	Name string
	// Fields are the headers that only this API has, or that mean something else here than
	// elsewhere. A header that is listed is read only as listed.
	Fields []Field
	// Refusals are the statuses that are refusals because of a limit, in addition to 429, 529, and
	// 503 with a Retry-After. Rules have those that are refusals sometimes.
	Refusals []int
	// Reason is why this API refuses with 429 and Refusals, unless the response says
	// otherwise. Unknown: [Rate]. It does not apply to a 503 or 529, which is about the API's
	// own troubles.
	Reason Reason
	// Kind and In are those of a [Field], for the headers of policies that Fields does not list.
	Kind Kind
	In   time.Duration
	// Penalty is how long the API's documentation asks to wait after a refusal that does not say. It
	// becomes the RetryAfter of a refusal for the reason Rate that has neither a Retry-After above 0
	// nor a reset. It does not apply to a 503. It is 0 for none.
	Penalty time.Duration
	// Rules are what words in responses mean: of headers, of bodies, and of further statuses.
	Rules []Rule
	// Members are values in the JSON of bodies, as Fields are those of headers. Their Header is the
	// path, with slashes before and between the names: "/error/retry_after". In an array each element
	// counts. A wait counts for refusals whose headers have none. A reset in milliseconds since 1970 is
	// exact. Members do not cover asterisks, Item, IsCustom and IsRateLimit.
	Members []Field
	// Free are the statuses of responses that cost nothing, such as a 304: see [Signal.Free].
	Free []int
	// Bodies are the responses whose body is read: at most 8 KiB of it, if its media type is
	// JSON, or one of Types, and it is not compressed otherwise than by gzip. Do not list
	// one that streams: the caller waits for its end, up to 2 s.
	Bodies []Body
	// Types are media types, in addition to JSON, whose bodies are read, in lower case, such as
	// "text/xml".
	Types []string
	// Judge looks at what the data above cannot express. It is called for refusals, for responses that
	// Free or Bodies lists, and for those with a header that Fields lists as [IsCustom]. Everything
	// else has been read then, and Wait follows. It may change the Signal, and must not keep it or the
	// Response. With a status of 500 and more it must leave the Reason, unless the API itself
	// names a limit there. A Reason other than Unknown and Overload, with a Detail, means that the
	// API certainly did not carry out the call. If the body is late, ReadEarly calls Judge twice,
	// first with what there is of it. It may be nil.
	Judge func(r *Response, s *Signal)

	// also are further names for ByName, as plain returns them: of the API, or of another one that
	// the profile fits.
	also string
}

// A Field is one header, or several with a name in them, and what it says of a policy. All
// fields with the same Policy make up one.
type Field struct {
	// Header is the header's name. The spelling that [http.CanonicalHeaderKey] gives is found
	// without allocation. One asterisk stands for the name of the policy, in lower case:
	// "X-Ratelimit-*-Remaining". Up to 16 fields may have one, for a number or IsCustom.
	Header string
	// Is is what its value says.
	Is Meaning
	// Policy is the Name of the policy that the value belongs to.
	Policy string
	// Unit, Kind and Window are the policy's, where the response does not report them.
	Unit   string
	Kind   Kind
	Window time.Duration
	// In is the unit of a number of IsReset, IsWindow and IsRetryAfter. If it is 0, the unit is a
	// second; a number of IsReset or IsRetryAfter that is as large as a time since 1970 is one.
	In time.Duration
	// Item is which value the field takes of a header that has a list of numbers, from 1 on. 0 is for
	// the whole header.
	Item int
	// Aligned says that the windows begin at multiples of Window since midnight, UTC. If the policy
	// is exhausted and the API reports no reset, that is the end of the window.
	Aligned bool
}

// Meaning is what the value of a header says.
type Meaning uint8

// The meanings. Numbers are not negative and may have decimals.
const (
	// IsCustom: the function Judge reads it. With an asterisk, Fields may list it as
	// something else, too.
	IsCustom Meaning = iota
	// IsLimit: how many units are allowed. The value may also be a list as in drafts 00 to
	// 03 of the IETF, "100, 100;w=60".
	IsLimit
	// IsRemaining: how many units remain.
	IsRemaining
	// IsUsed: how many units are used. It counts where the API does not report what remains.
	IsUsed
	// IsUsedOfLimit: both, as "32/40".
	IsUsedOfLimit
	// IsReset: when the limit is there again, as a number, a duration as Go writes it, or a point in
	// time. If several headers are of one policy, the one that Fields lists first counts.
	IsReset
	// IsWindow: the time in which the limit is allowed.
	IsWindow
	// IsRetryAfter: how long to wait after a refusal, as a number, a duration as Go writes it, or a
	// point in time.
	IsRetryAfter
	// IsName: the Name of the policy.
	IsName
	// IsScope and IsDetail: these fields of the Signal.
	IsScope
	IsDetail
	// IsRateLimit and IsRateLimitPolicy: the IETF's structured fields RateLimit and
	// RateLimit-Policy under another name.
	IsRateLimit
	IsRateLimitPolicy
)

// A Body selects responses whose body the profile reads.
type Body struct {
	Status int
	// Header and Value narrow that to responses with that header line, compared without regard to
	// case. If Value is empty, any line counts. If both are empty, all responses with the Status do.
	Header, Value string
	// Silent narrows that to refusals whose headers lack a wait, and to other responses whose headers
	// lack a limit. Such a success may be a stream: the caller waits until 10 ms after the first bytes
	// of its body.
	Silent bool
}

// Generic reads what needs no knowledge of a vendor.
var Generic *Profile = generic

var generic = add(Profile{
	Name: "generic", Refusals: []int{420},
	Bodies: []Body{{Status: 429, Silent: true}, {Status: 429, Header: "Content-Type", Value: "application/problem+json"},
		{Status: 400, Header: "X-Ogw-Ratelimit-Reset"}, {Status: 200, Header: "X-Bapi-Limit-Status", Value: "0"}},
	Members: waits,
	Rules: []Rule{
		{Status: 402, Spent: true}, // Toggl: engineering.toggl.com/docs
		{Status: 403, In: "X-Mashery-Error-Code", Words: "*over_qps"},
		{Status: 403, In: "X-Mashery-Error-Code", Words: "*over_rate", Reason: Quota},
		{Status: 400, In: "/code", Words: "99991400"},       // Lark: open.larksuite.com, "Frequency control"
		{Status: 200, In: "/retCode", Words: "10006|10018"}, // Bybit: bybit-exchange.github.io/docs/v5/rate-limit
		// Let's Encrypt: github.com/letsencrypt/boulder, ratelimits/limiter.go
		{Status: 429, In: "/detail", Words: "too many certificates*already issued for|too many failed authorizations*for", Reason: Lock, Scope: "identifiers"},
	},
	also: `
	agentai aircall airly akamai amazonspapi azurecosmos basecamp bigcommerce bitbucket bluesky braze
	bybit cloudflare companieshouse confluencedatacenter confluencedc contentful cosmos cosmosdb crossref
	datadog discogs docker dockerhub ebay envoy etsy eve eventbrite expressratelimit fastly fitbit front gate
	gateio gitlab gravitee hey huggingface ietf imgur intercom jiradatacenter jiradc klaviyo kong kucoin
	launchdarkly lemlist mailerlite mapbox mastodon ns1 oracleapigateway persona resend ringcentral
	sellingpartnerapi sendgrid sentry spapi spotify toggl trakt trello tumblr turnio urlscan vercel vimeo
	xweather yelp zep`})

// Read returns what a response says. now is the time at which its headers came. It counts only
// where the response has a point in time but no Date to measure it by, and is best corrected by the
// Skew of earlier responses. The zero time stands for the moment, and is cheaper where there is
// nothing to read. If Bodies lists the response, Read reads its body, for 2 s at most, and
// replaces it: the new body reads, fails and closes as the old one. Read changes nothing else of
// the response. A nil response has a zero Signal. Read finds headers only under the canonical names
// of net/http.
//
// Read reads at most 4 KiB of values, no line above 1 KiB, and 16 lines of one name. A response
// without limits costs no allocation.
func (p *Profile) Read(resp *http.Response, now time.Time) (s Signal) {
	p.read(&s, resp, now, nil)
	return s
}

// ReadEarly is Read for callers that have to know of a refusal before its body is there. If the
// body takes more than 10 ms, and the headers show a refusal, ReadEarly calls early with them,
// once, before it waits for the body. What it returns then may say otherwise, as where a refusal
// turns out to be a [Lock]. ReadEarly judges a response whose body comes with its headers as a
// whole, and does not call early. It may be nil.
func (p *Profile) ReadEarly(resp *http.Response, now time.Time, early func(Signal)) (s Signal) {
	p.read(&s, resp, now, early)
	return s
}

// mayRead reports whether a response can say something although it has no header that is
// generally known.
func (p *Profile) mayRead(status int, h http.Header, f *candidates) bool {
	return status == http.StatusTooManyRequests || status == statusOverloaded || len(p.Fields) > 0 || slices.Contains(p.Refusals, status) ||
		slices.Contains(p.Free, status) || p.body(status, h, f, nil) != nil || p.ruled(status)
}

// statusOverloaded is what several vendors answer when they are overloaded.
const statusOverloaded = 529

// read is ReadEarly into a Signal, which costs time to copy.
func (p *Profile) read(to *Signal, resp *http.Response, now time.Time, early func(Signal)) {
	if p = cmp.Or(p, Generic); resp == nil {
		return
	}
	var f candidates
	f.scan(resp.Header)
	// In a 200, mayRead of Generic would find nothing, in a fifth of the time.
	if f.n > 0 || (p != generic || resp.StatusCode != http.StatusOK) && p.mayRead(resp.StatusCode, resp.Header, &f) {
		p.readAll(to, resp, now, &f, early)
	}
}

// readAll is read for a response that may have something to read.
func (p *Profile) readAll(to *Signal, resp *http.Response, now time.Time, f *candidates, early func(Signal)) {
	if now.IsZero() {
		now = time.Now()
	}
	var r reader // not a literal, which would be copied
	r.p, r.header, r.candidates, r.left, r.now, r.ms = p, resp.Header, *f, maxRead, now, None
	s := &r.s
	if to.Cached = r.cached(); to.Cached {
		return
	}
	custom := r.headers() || r.s.overdrawn && r.s.HasRetryAfter
	r.mergePolicies()

	status := resp.StatusCode
	switch {
	case status == http.StatusTooManyRequests, slices.Contains(p.Refusals, status):
		s.Throttled, s.Reason = true, cmp.Or(p.Reason, Rate)
	case status == statusOverloaded:
		s.Throttled, s.Reason = true, Overload
	case status == http.StatusServiceUnavailable && s.HasRetryAfter:
		s.Throttled = true
	}
	s.Free = !s.Throttled && slices.Contains(p.Free, status)
	peek := p.body(status, resp.Header, f, s)
	if peek == nil || !p.readable(resp) {
		r.judge(p, status, nil, peek != nil && !peek.Silent, custom)
	} else {
		b := lookAt(resp)
		if peek.Silent && !s.Throttled { // it may be a stream
			_ = within(bodyTimeout, b.begun) && within(promptTimeout, b.done)
		} else if !within(promptTimeout, b.done) {
			if early != nil {
				first := r
				first.judge(p, status, b.look(false), true, custom)
				if first.finish(p); first.s.Throttled {
					early(first.s)
				}
			}
			within(bodyTimeout-promptTimeout, b.done)
		}
		r.judge(p, status, b.look(true), true, custom)
	}
	r.finish(p)
	*to = r.s
}

// judge lets the profile's rules and its function look at what there is. listed and custom are why
// the function looks at a response that is no refusal.
func (r *reader) judge(p *Profile, status int, body []byte, listed, custom bool) {
	if body != nil || p.ruled(status) || (r.s.Throttled || listed) && p.ruled(0) {
		r.words(p, status, body, listed)
	}
	if p.Judge == nil || !listed && !custom && !r.s.Throttled && !r.s.Free {
		return
	}
	resp := &Response{Status: status, Header: r.header, Body: body, clock: r.clock(), left: maxRead}
	judged := r.s // Judge's argument escapes, so only here the Signal costs an allocation
	p.Judge(resp, &judged)
	r.s = judged
	r.s.bound()
}

// finish computes what follows from all that was read.
func (r *reader) finish(p *Profile) {
	s := &r.s
	s.ofEndpoint()
	s.computeWait(p.Penalty)
	if s.Throttled || s.n > 0 {
		if r.clock(); r.dated {
			s.Date, s.Skew = r.at, max(-forever, between(r.now, r.at))
		}
	}
}
