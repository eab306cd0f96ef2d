package profile

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// profile reads the fields that a profile lists. It reports whether there is one for Judge.
func (r *reader) profile(p *Profile) (custom bool) {
	var limits, policies []string
	wildcards := false
	for i := range p.Fields {
		switch f := &p.Fields[i]; f.Is {
		case IsRateLimit:
			limits = f.lines(r.header)
		case IsRateLimitPolicy:
			policies = f.lines(r.header)
		}
	}
	r.structured(limits, policies)
	from := r.s.n
	for i := range p.Fields {
		f := &p.Fields[i]
		if strings.IndexByte(f.Header, '*') >= 0 {
			wildcards = true
			continue
		}
		switch f.Is {
		case IsRateLimit, IsRateLimitPolicy, IsName:
			continue
		}
		if v := f.lines(r.header); len(v) == 0 {
		} else if f.Is == IsCustom {
			custom = true
		} else {
			r.field(f, f.Policy, v, from)
		}
	}
	if wildcards && len(r.header) <= maxNames {
		custom = r.wildcards(p, from) || custom
	}
	for i := r.s.n - 1; i >= from; i-- {
		if !r.s.Policies()[i].normalize() {
			r.s.drop(i)
		}
	}
	r.names(p, from)
	return custom
}

// lines returns the lines of the field's header.
func (f *Field) lines(h http.Header) []string { return lines(h, canonical(f.Header)) }

// canonical is http.CanonicalHeaderKey, but quicker for a name that is canonical already.
func canonical(name string) string {
	start := true
	for i := range len(name) {
		c := name[i]
		if start && 'a' <= c && c <= 'z' || !start && 'A' <= c && c <= 'Z' {
			return http.CanonicalHeaderKey(name)
		}
		start = c == '-'
	}
	return name
}

// field reads the lines of one header into the policy that it belongs to.
func (r *reader) field(f *Field, policy string, lines []string, from int) {
	switch f.Is {
	case IsRetryAfter:
		for v := range r.each(lines) {
			r.delays(v, f.In)
		}
		return
	case IsScope, IsDetail:
		to := &r.s.Scope
		if f.Is == IsDetail {
			to = &r.s.Detail
		}
		for v := range r.each(lines) {
			*to = cmp.Or(*to, clean(v))
		}
		return
	}
	p := r.group(f, policy, from)
	if p == nil {
		return
	}
	switch f.Is {
	case IsLimit:
		r.limit(p, lines)
	case IsRemaining:
		r.remaining(p, lines)
	case IsReset:
		if p.Reset < 0 {
			r.reset(p, lines, f.In)
		}
	case IsWindow:
		r.window(p, lines, f.In)
	case IsUsed, IsUsedOfLimit:
		r.used(p, lines, f.Is == IsUsedOfLimit)
	}
}

// group returns the profile's policy of that name.
func (r *reader) group(f *Field, name string, from int) *Policy {
	all := r.s.Policies()
	for i := from; i < len(all); i++ {
		if strings.EqualFold(all[i].Name, name) {
			return &all[i]
		}
	}
	if f.Policy != name {
		name = lower(clean(name))
	}
	p := NewPolicy(name)
	p.Kind, p.Window = f.Kind, f.Window
	p.Unit = cmp.Or(f.Unit, unitOf(name))
	return r.s.push(p)
}

// unitOf returns the unit that the name of a policy says.
func unitOf(name string) string {
	for _, unit := range [...]string{"tokens", "requests"} {
		if strings.HasSuffix(name, unit) {
			return unit
		}
	}
	return ""
}

func (r *reader) window(p *Policy, lines []string, unit time.Duration) {
	for v := range r.each(lines) {
		if d, ok := span(v, cmp.Or(unit, time.Second)); ok {
			p.Window = max(p.Window, d)
		}
	}
}

func (r *reader) used(p *Policy, lines []string, ofLimit bool) {
	for v := range r.each(lines) {
		used, limit, slash := strings.Cut(v, "/")
		n, ok := number(strings.TrimRight(used, " \t"))
		if !ok || slash != ofLimit {
			continue
		}
		if ofLimit {
			m, ok := number(strings.TrimLeft(limit, " \t"))
			if !ok {
				continue
			}
			p.least(&p.Limit, m)
		}
		p.used = max(p.used, n)
	}
}

// wildcards reads the headers with a name in them.
func (r *reader) wildcards(p *Profile, from int) (custom bool) {
	type pattern struct {
		f              *Field
		prefix, suffix string
	}
	var all [16]pattern
	n := 0
	for i := range p.Fields {
		header := p.Fields[i].Header
		if star := strings.IndexByte(header, '*'); star >= 0 && n < len(all) {
			header = canonical(header)
			all[n] = pattern{&p.Fields[i], header[:star], header[star+1:]}
			n++
		}
	}
	for name := range r.header {
		read := false
		for i := range all[:n] {
			w := &all[i]
			if len(name) <= len(w.prefix)+len(w.suffix) || !strings.HasPrefix(name, w.prefix) || !strings.HasSuffix(name, w.suffix) {
				continue
			}
			if slot(name) != hNone || p.lists(name) {
				break
			}
			switch {
			case w.f.Is == IsCustom:
				custom = true
			case !read && r.left > 0:
				read = true
				r.field(w.f, name[len(w.prefix):len(name)-len(w.suffix)], lines(r.header, name), from)
			}
		}
	}
	return custom
}

// lists reports whether a field without an asterisk lists a header, which takes precedence.
func (p *Profile) lists(name string) bool {
	return slices.ContainsFunc(p.Fields, func(f Field) bool { return strings.EqualFold(f.Header, name) })
}

// names gives the policies the names that the API sends in separate headers.
func (r *reader) names(p *Profile, from int) {
	for i := range p.Fields {
		f := &p.Fields[i]
		if f.Is != IsName {
			continue
		}
		for v := range r.each(lines(r.header, canonical(f.Header))) {
			for j := from; j < r.s.n; j++ {
				if q := &r.s.Policies()[j]; q.Name == f.Policy {
					q.Name = clean(v)
					break
				}
			}
			break
		}
	}
}

const maxName = 128

// clean returns a name as the package passes it on: of bounded length, valid UTF-8 and
// without control characters.
func clean(name string) string {
	ascii := len(name) <= maxName
	for i := 0; ascii && i < len(name); i++ {
		ascii = ' ' <= name[i] && name[i] <= '~'
	}
	if ascii {
		return name
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || 0x7f <= c && c < 0xa0 || c == 0x2028 || c == 0x2029 {
			return -1
		}
		return c
	}, strings.ToValidUTF8(name[:min(len(name), maxName)], "")) // which cuts a part of a character off, too
}

// lower is strings.ToLower without allocation for the common names.
func lower(name string) string {
	for _, common := range [...]string{"requests", "tokens", "input-tokens", "output-tokens"} {
		if strings.EqualFold(name, common) {
			return common
		}
	}
	return strings.ToLower(name)
}
