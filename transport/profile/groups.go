package profile

import (
	"cmp"
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

// everywhere are headers with one meaning for all APIs, which their names do not say. Sources are
// the documents of KuCoin, Bybit (v5/rate-limit), Amazon's Selling Partner API ("Usage plans and
// rate limits"), Shopify, Etsy ("Rate limits"), Xero and X.
var everywhere = func() map[string]*Field {
	all := map[string]*Field{}
	for _, f := range slices.Concat(
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
		all[f.Header] = &f
	}
	return all
}()

// group returns the group of a label.
func (r *reader) group(l *label) *group {
	all := r.groups.all()
	for i := range all {
		if a := &all[i]; a.stem == l.stem && (a.key == l.key || l.stem == "" && strings.EqualFold(a.key, l.key)) {
			a.weak = a.weak && l.weak
			return a
		}
	}
	a := r.groups.push(group{Policy: NewPolicy(""), stem: l.stem, key: l.key, field: l.field, weak: l.weak})
	if a == nil {
		return nil
	}
	if l.policy != "" {
		a.Name = lower(clean(l.policy))
	}
	if f := l.field; f == nil {
		a.names()
	} else {
		if f.Policy == l.key {
			a.Name = f.Policy
		}
		a.Kind, a.Window, a.Unit = f.Kind, f.Window, cmp.Or(f.Unit, unitOf(a.Name))
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

// unitOf returns the unit that the end of a policy's name says.
func unitOf(name string) string {
	for _, unit := range [...]string{"tokens", "requests", "images", "seconds", "points", "credits", "bytes", "characters", "units"} {
		if strings.HasSuffix(name, unit) {
			return unit
		}
	}
	switch name {
	case "req", "calls":
		return "requests"
	case "complexity":
		return "points"
	}
	return ""
}

// header reads the lines of one header.
func (r *reader) headerLines(l *label, lines []string) {
	switch l.is {
	case IsRetryAfter:
		unit := l.in
		if l.field == nil && unit != time.Millisecond {
			unit = cmp.Or(r.p.In, seconds1970)
		}
		for v := range r.each(lines) {
			r.delays(v, unit)
		}
		return
	case IsScope, IsDetail:
		to := &r.s.Scope
		if l.is == IsDetail {
			to = &r.s.Detail
		}
		for v := range r.each(lines) {
			*to = cmp.Or(*to, clean(v))
		}
		return
	case IsRateLimitPolicy:
		r.structured(nil, lines)
		return
	case isAll:
		r.values(l, lines)
		return
	}
	p := r.group(l)
	if p == nil {
		return
	}
	switch l.is {
	case IsLimit:
		r.limit(&p.Policy, lines)
	case IsRemaining:
		r.remaining(&p.Policy, lines)
	case IsUsed, IsUsedOfLimit:
		r.used(&p.Policy, lines, l.is == IsUsedOfLimit)
	case IsWindow:
		for v := range r.each(lines) {
			if d, ok := span(first(v), cmp.Or(l.in, time.Second)); ok {
				p.Window = max(p.Window, d)
			}
		}
	case IsName:
		for v := range r.each(lines) {
			p.label = cmp.Or(p.label, clean(v))
		}
	case isFillRate:
		p.Kind = Bucket
	case IsReset:
		if l.field != nil && len(p.resets) > 0 && l.rank == p.rank {
			p.resets = append(p.resets[:len(p.resets):len(p.resets)], lines...) // of the elements of an array
		} else if len(p.resets) == 0 || l.rank < p.rank || l.rank == p.rank && lines[0] < p.resets[0] {
			p.resets, p.in, p.rank = lines, l.in, l.rank
		}
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
			p.Reset, p.Absolute = aligned(r.clock(), p.Window), true
		}
		r.s.push(*p)
	}
}

// aligned returns how long it is until the next multiple of a window since midnight, UTC.
func aligned(clock time.Time, window time.Duration) time.Duration {
	return clock.Truncate(window).Add(window).Sub(clock)
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
	others, given := 0, false
	var only *group
	for j := range all {
		if b := &all[j]; j != i && b.stem == a.stem {
			others++
			only = b
		}
	}
	bare := a.Limit < 0 && a.Remaining < 0
	switch {
	case others == 1 && (a.Limit < 0 || only.Limit < 0) && (a.Remaining < 0 || only.Remaining < 0) &&
		(a.Reset < 0 || only.Reset < 0) && (a.Window == 0 || only.Window == 0):
		if !bare || only.key == "Requests" {
			only.Name, only.Kind, only.Unit = a.Name, a.Kind, a.Unit
		}
		only.Limit, only.Remaining = max(a.Limit, only.Limit), max(a.Remaining, only.Remaining)
		if a.Reset >= 0 {
			only.Reset, only.Absolute = a.Reset, a.Absolute
		}
		only.Window = max(a.Window, only.Window)
		given = true
	case others > 1 && bare && a.Reset >= 0:
		for j := range all {
			if b := &all[j]; j != i && b.stem == a.stem && b.Remaining == 0 && b.Reset < 0 {
				b.Reset, b.Absolute, given = a.Reset, a.Absolute, true
			}
		}
	}
	if given {
		a.Policy = NewPolicy("")
	}
}

// values reads a header that says all of a policy in its value: 700, 100;w=60, 60r/m, JSON, or
// words with numbers such as "total=100; remaining=99" and "token:a 22/2000 reset=3530s".
func (r *reader) values(l *label, lines []string) {
	for v := range r.each(lines) {
		switch {
		case strings.HasPrefix(v, "{"):
			r.object(v)
		case strings.IndexByte(v, '=') > 0 && (l.key != "" || strings.IndexByte(v, '/') > 0):
			r.pairs(l, v)
		case l.key == "" && l.stem != "X-Rate-Limit": // which is a limit with one vendor only
			if p := r.group(l); p != nil {
				r.limitOf(&p.Policy, v)
			}
		}
	}
}

// objectFields are those of a policy in JSON, as 37signals and Trakt send it.
var objectFields = headers(Field{}, "name /name limit /limit remaining /remaining window /period reset /until")

// object reads a policy in JSON.
func (r *reader) object(v string) {
	for f := find([]byte(v), "name", "limit", "remaining", "period", "until"); f.next(); {
		if field := &objectFields[f.at]; f.value != "" {
			r.headerLines(&label{is: field.Is, stem: v, key: v, field: field}, []string{f.value})
		}
	}
}

// pairs reads words with numbers. A word with a colon, or one that comes again, begins a policy.
func (r *reader) pairs(l *label, v string) {
	p := NewPolicy(lower(clean(l.policy)))
	begin := func(name string) {
		if l.key != "" {
			p.Unit = "endpoint"
		}
		r.s.Add(p)
		p = NewPolicy(clean(name))
	}
	for word := range items(v, ",; ") {
		key, value, pair := strings.Cut(word, "=")
		used, limit, part := strings.Cut(word, "/")
		n, numeric := number(value)
		switch name, _, named := strings.Cut(word, ":"); {
		case named && !pair:
			begin(name)
		case part:
			if p.Limit >= 0 {
				begin("")
			}
			p.used, _ = count(used)
			p.Limit, _ = count(limit)
		case !pair || key == "":
		case meaningOf(key) == IsReset:
			r.resetAt(&p, value, 0)
		case !numeric:
		case meaningOf(key) == IsLimit:
			p.Limit = n
		case meaningOf(key) == IsRemaining:
			p.Remaining = n
		}
	}
	begin("")
}
