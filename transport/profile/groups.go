package profile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// A group is one policy as far as its headers have been read.
type group struct {
	Policy
	stem, key string
	field     *Field
	weak      bool
	label     string   // the name in a header of its own
	resets    []string // the lines of the reset of the least rank
	in        time.Duration
	rank      int8
	ms        bool // numbers without a unit are milliseconds
}

// common are the names of headers with one meaning for all APIs, and what they say: those that are
// usual, and those that do not say it. Sources are the documents of KuCoin, Bybit (v5/rate-limit),
// Amazon's Selling Partner API ("Usage plans and rate limits"), Shopify, Etsy ("Rate limits"), Xero
// and X.
var common = func() map[string]*label {
	all := map[string]*label{}
	for _, f := range slices.Concat(
		headers(Field{}, "ratelimit Ratelimit policy Ratelimit-Policy"),
		headers(Field{In: seconds1970}, "wait Retry-After wait X-Ratelimit-Retry-After"),
		headers(Field{In: time.Millisecond}, "wait Retry-After-Ms wait X-Ms-Retry-After-Ms wait X-Amz-Retry-After"),
		limitFields("Gw-Ratelimit-", Field{In: time.Millisecond}),
		headers(Field{}, "limit X-Bapi-Limit remaining X-Bapi-Limit-Status reset X-Bapi-Limit-Reset-Timestamp"),
		headers(Field{Policy: "rate", Kind: PerSecond, Window: time.Second}, "limit X-Amzn-Ratelimit-Limit"),
		headers(Field{Policy: "shop-api-call", Kind: Bucket}, "part X-Shopify-Shop-Api-Call-Limit"),
		headers(Field{Policy: "second", Window: time.Second}, // Etsy has sent X-Remaining-This-Secon
			"limit X-Limit-Per-Second remaining X-Remaining-This-Second remaining X-Remaining-This-Secon"),
		headers(Field{Policy: "day", Window: day}, "limit X-Limit-Per-Day remaining X-Remaining-Today remaining X-Daylimit-Remaining"),
		headers(Field{Policy: "minute", Window: time.Minute}, "remaining X-Minlimit-Remaining"),
		headers(Field{Policy: "appminute", Window: time.Minute}, "remaining X-Appminlimit-Remaining"),
		headers(Field{Policy: "errors", Unit: "errors", Window: time.Minute}, // EVE's: developers.eveonline.com, "Best practices"
			"remaining X-Esi-Error-Limit-Remain reset X-Esi-Error-Limit-Reset"),
		limitFields("X-App-Limit-24hour-", Field{Policy: "app-24hour", Window: day}),
		limitFields("X-User-Limit-24hour-", Field{Policy: "user-24hour", Window: day}),
	) {
		all[f.Header] = f.label(f.Policy, 0)
	}
	for name := range strings.FieldsSeq(`Ratelimit-Limit Ratelimit-Remaining Ratelimit-Reset Ratelimit-Resettime Ratelimit-Name
		X-Ratelimit-Limit X-Ratelimit-Remaining X-Ratelimit-Reset X-Ratelimit-Reset-After X-Ratelimit-Used X-Ratelimit-Resource
		X-Rate-Limit-Limit X-Rate-Limit-Remaining X-Rate-Limit-Reset`) {
		l, _ := labelOf(name)
		all[name] = &l
	}
	return all
}()

// commonNames are those, in their order. They are read where there are too many headers to look at
// all.
var commonNames = slices.SortedFunc(maps.Keys(common), waitsFirst)

// group returns the group of a label.
func (r *reader) group(l *label) *group {
	all := r.groups.all()
	for i := range all {
		if a := &all[i]; a.stem == l.stem && a.key == l.key {
			a.weak = a.weak && l.weak
			return a
		}
	}
	a := r.groups.push(group{Policy: NewPolicy(l.policy), stem: l.stem, key: l.key, field: l.field, weak: l.weak})
	if a == nil {
		return nil
	}
	if f := l.field; f != nil {
		a.Kind, a.Window, a.Unit = f.Kind, f.Window, cmp.Or(f.Unit, unitOf(a.Name))
	} else if a.Name != "" {
		a.Name = lower(clean(a.Name))
		a.names()
	}
	return a
}

// names reads what the words of a policy's name say about it.
func (p *Policy) names() {
	for word := range strings.SplitSeq(p.Name, "-") {
		p.Window = max(p.Window, windowOf(word))
		switch word {
		case "concurrent", "concurrency", "connections":
			p.Kind = InFlight
		case "endpoint", "route":
			p.Unit = "endpoint"
		}
		if p.Unit != "endpoint" {
			p.Unit = cmp.Or(unitOf(word), p.Unit)
		}
	}
}

var (
	units       = strings.Fields("tokens requests req calls images seconds points complexity credits bytes characters units")
	otherWordOf = map[string]string{"req": "requests", "calls": "requests", "complexity": "points"}
)

// unitOf returns the unit that the end of a policy's name says.
func unitOf(name string) string {
	for _, unit := range units {
		if strings.HasSuffix(name, unit) {
			return cmp.Or(otherWordOf[unit], unit)
		}
	}
	return ""
}

// headerLines reads the lines of one header.
func (r *reader) headerLines(l *label, lines []string) {
	var p *group
	switch l.is {
	case IsCustom:
		return
	case IsRateLimit, IsRateLimitPolicy:
		r.structured(l, lines)
		return
	case IsRetryAfter, IsScope, IsDetail, isAll:
	default:
		if p = r.group(l); p == nil {
			return
		}
	}
	if l.is == IsReset {
		if l.field != nil && len(p.resets) > 0 && l.rank == p.rank {
			p.resets = append(p.resets[:len(p.resets):len(p.resets)], lines...) // of the elements of an array
		} else if len(p.resets) == 0 || l.rank < p.rank || l.rank == p.rank && lines[0] < p.resets[0] {
			p.resets, p.in, p.rank = lines, l.in, l.rank
		}
		return
	}
	for v := range r.each(lines) {
		r.value(l, p, v)
	}
}

// value reads one line of a header. The group is that of the policy, or nil.
func (r *reader) value(l *label, p *group, v string) {
	switch l.is {
	case IsRetryAfter:
		unit := l.in
		if l.field == nil {
			unit = cmp.Or(unit, r.p.In, seconds1970)
		}
		r.delays(v, unit)
	case IsScope:
		r.s.Scope = cmp.Or(r.s.Scope, clean(v))
	case IsDetail:
		r.s.Detail = cmp.Or(r.s.Detail, clean(v))
	case isAll:
		r.values(l, v)
	case IsLimit:
		r.limit(&p.Policy, v)
	case IsRemaining:
		parts(v, func(one string) bool {
			n, ok := p.remains(one)
			r.s.overdrawn = r.s.overdrawn || n < -1
			return ok
		})
	case IsUsed:
		if n, ok := number(v); ok {
			p.used = max(p.used, n)
		}
	case IsUsedOfLimit:
		used, limit, _ := strings.Cut(v, "/")
		n, ok := number(trim(used))
		if m, ok2 := number(trim(limit)); ok && ok2 {
			p.least(&p.Limit, m)
			p.used = max(p.used, n)
		}
	case IsWindow:
		d, _ := span(first(v), cmp.Or(l.in, time.Second))
		p.Window = max(p.Window, d)
	case IsName:
		p.label = cmp.Or(p.label, clean(v))
	case isFillRate:
		p.Kind = Bucket
	}
}

// finishGroups gives the groups what only all of them show, and adds them to the signal.
func (r *reader) finishGroups() {
	all := r.groups.all()
	for i := range all {
		for j := range all { // what is in milliseconds once is so in all headers of a stem
			all[i].ms = all[i].ms || all[j].stem == all[i].stem && all[j].milliseconds()
		}
	}
	for i := range all {
		if a := &all[i]; len(a.resets) > 0 {
			if a.in == 0 && a.field == nil {
				a.in = r.p.In
			}
			if a.in == 0 && a.ms {
				a.in = time.Millisecond
			}
			r.reset(&a.Policy, a.resets, a.in)
			if a.field != nil && strings.HasPrefix(a.field.Header, "/") && allDigits(a.resets[0]) && len(a.resets[0]) > 11 {
				a.Absolute = false // milliseconds are exact
			}
		}
	}
	for i := range all {
		share(all, i)
	}
	for i := range all {
		a := &all[i]
		p := &a.Policy
		if p.Name = cmp.Or(a.label, p.Name); !p.normalize() || a.weak && (p.Remaining < 0 || p.Reset < 0 && (p.Limit < 0 || !strings.Contains(a.stem, "imit"))) {
			continue
		}
		if a.field == nil && p.Kind == Window {
			if p.Kind = r.p.Kind; p.Unit != "" && p.Window == 0 {
				p.Kind = Bucket // of those whose names say no more, all are: OpenAI, Anthropic, Linear
			}
		} else if a.field != nil && a.field.Aligned && p.Reset < 0 && p.Remaining == 0 {
			p.Reset, p.Absolute = r.clock().Truncate(p.Window).Add(p.Window).Sub(r.clock()), true
		}
		r.s.push(*p)
	}
}

// milliseconds reports whether the reset is a number that is so far above the window that it cannot
// be in seconds.
func (a *group) milliseconds() bool {
	if a.in > 0 || a.Window == 0 || len(a.resets) == 0 || len(a.resets[0]) > maxDigits {
		return false
	}
	n, ok := number(first(a.resets[0]))
	return ok && n < 1e9 && n > 1.5*a.Window.Seconds() && n/1000 <= 1.5*a.Window.Seconds()
}

// share adds group i, if no name of a policy is in its headers, to the only other group of its
// stem, or its reset to those that are exhausted.
func share(all []group, i int) {
	a := &all[i]
	if a.stem == "" || a.key != "" {
		return
	}
	others, given, bare := 0, a.Policy, a.Limit < 0 && a.Remaining < 0
	for j := range all {
		if all[j].stem == a.stem && j != i {
			others++
		}
	}
	for j := range all {
		switch b := &all[j]; {
		case b.stem != a.stem, j == i:
		case others == 1 && b.lacks(&given):
			if !bare || b.key == "Requests" {
				b.Name, b.Kind, b.Unit = a.Name, a.Kind, a.Unit
			}
			b.join(&given)
			a.Policy = NewPolicy("")
		case bare && b.Remaining == 0 && b.Reset < 0:
			b.Reset, b.Absolute, a.Policy = given.Reset, given.Absolute, NewPolicy("")
		}
	}
}

// lacks reports whether a policy has nothing that q has.
func (p *Policy) lacks(q *Policy) bool {
	return (p.Limit < 0 || q.Limit < 0) && (p.Remaining < 0 || q.Remaining < 0) &&
		(p.Reset < 0 || q.Reset < 0) && (p.Window == 0 || q.Window == 0)
}

// values reads a line that says all of a policy: 700, 100;w=60, 60r/m, JSON, or words with numbers
// such as "total=100; remaining=99" and "token:a 22/2000 reset=3530s".
func (r *reader) values(l *label, v string) {
	switch {
	case strings.HasPrefix(v, "{"):
		r.object(v)
	case strings.IndexByte(v, '=') > 0 && (l.key != "" || strings.IndexByte(v, '/') > 0):
		r.pairs(l, v)
	case l.key == "" && l.stem != "X-Rate-Limit": // which is a limit with one vendor only
		if p := r.group(l); p != nil {
			r.limit(&p.Policy, v)
		}
	}
}

// objectFields are those of a policy in JSON, as 37signals and Trakt send it.
var objectFields = headers(Field{}, "name name limit limit remaining remaining window period reset until")

// object reads a policy in JSON.
func (r *reader) object(v string) {
	for f := find([]byte(v), "name", "limit", "remaining", "period", "until"); f.next(); {
		if field := &objectFields[f.at]; f.value != "" {
			r.headerLines(&label{is: field.Is, stem: v, key: v, field: field}, []string{f.value})
		}
	}
}

// blanks are those within the words that pairs reads.
var blanks = strings.NewReplacer(" = ", "=", " / ", "/")

// pairs reads words with numbers. A word with a colon, or before the use of a limit, names a
// policy.
func (r *reader) pairs(l *label, v string) {
	one := label{stem: v, key: v, policy: lower(clean(l.policy)), field: cmp.Or(l.field, &Field{})}
	if l.key != "" {
		one.field.Unit = "endpoint"
	}
	for word := range items(blanks.Replace(v), ",; ") {
		key, value, pair := strings.Cut(word, "=")
		name, _, named := strings.Cut(key, ":")
		used := strings.IndexByte(word, '/') > 0
		if named || used && pair {
			one.key, one.policy = word, clean(name)
		}
		switch one.is = meaningOf[key]; {
		case used && !pair:
			one.is, value = IsUsedOfLimit, word
		case used:
			one.is = IsUsedOfLimit
			value, _, _ = strings.Cut(value, "(") // the name of the app
		}
		r.headerLines(&one, []string{value})
	}
}
