package profile

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// headers reads the headers of policies: those that the profile lists, those that mean the same
// everywhere, and the rest by their names. It reports whether there is one for Judge.
func (r *reader) headers(more bool) (custom bool) {
	p := r.p
	var limits, policies []string
	var ietf *Field
	for i := range p.Fields {
		f := &p.Fields[i]
		if strings.IndexByte(f.Header, '*') >= 0 {
			more = true
			continue
		}
		switch v := f.lines(r.header); {
		case len(v) == 0:
		case f.Is == IsRateLimit:
			limits, ietf = v, f
		case f.Is == IsRateLimitPolicy:
			policies, ietf = v, f
		case f.Is == IsCustom:
			custom = true
		default:
			r.headerLines(f.label(f.Policy, i), v)
		}
	}
	from := r.s.n
	r.structured(limits, policies)
	for i := from; i < r.s.n; i++ {
		q := &r.s.Policies()[i]
		q.Kind, q.Unit = max(q.Kind, ietf.Kind), cmp.Or(q.Unit, ietf.Unit)
	}
	for n := hLimit; n < hNone; n++ {
		if v := r.known(n); v != nil {
			r.headerLines(&labels[n], v)
		}
	}
	if more && len(r.header) <= maxNames {
		for name, v := range r.header {
			if slot(name) == hNone && len(v) > 0 && !p.lists(name) {
				custom = r.unknown(name, v[:min(len(v), maxLines)]) || custom
			}
		}
	}
	r.finishGroups()
	return custom
}

// lines returns the lines of the field's header, or the value that the field takes.
func (f *Field) lines(h http.Header) []string {
	v := lines(h, http.CanonicalHeaderKey(f.Header))
	if f.Item <= 0 || len(v) == 0 {
		return v
	}
	all := strings.SplitN(strings.Join(v, ","), ",", maxLines+1)
	if f.Item > min(len(all), maxLines) {
		return nil
	}
	return all[f.Item-1 : f.Item]
}

// label is that of the field's header. Of several resets the one that is listed first counts.
func (f *Field) label(policy string, i int) *label {
	return &label{is: f.Is, key: policy, policy: policy, in: f.In, rank: int8(min(i, 100)), field: f}
}

// unknown reads a header that is missing in the profile and in the table of known ones. It reports
// whether the header is for Judge.
func (r *reader) unknown(name string, v []string) (custom bool) {
	read := false
	for i := range r.p.Fields {
		f := &r.p.Fields[i]
		before, after, star := strings.Cut(f.Header, "*")
		if !star || len(name) <= len(f.Header)-1 || !strings.EqualFold(name[:len(before)], before) ||
			!strings.EqualFold(name[len(name)-len(after):], after) {
			continue
		}
		if f.Is == IsCustom {
			custom = true
		} else if !read {
			read = true
			r.headerLines(f.label(name[len(before):len(name)-len(after)], i), v)
		}
	}
	if read || strings.IndexByte(name, 'm') < 0 { // as in limit, remaining
		return custom
	}
	if f := everywhere[name]; f != nil {
		r.headerLines(f.label(f.Policy, 0), v)
	} else if l, ok := labelOf(name); ok {
		r.headerLines(&l, v)
		if l.weak && l.is == IsRemaining {
			r.siblings(&l)
		}
	}
	return custom
}

// siblings reads the limit and the reset of what may be a quota, because a header has its rest.
func (r *reader) siblings(l *label) {
	for _, end := range [...]string{"-Limit", "-Reset", "-Resets-In"} {
		if v := lines(r.header, l.stem+end); len(v) > 0 {
			more := *l
			if more.is = IsReset; end == "-Limit" {
				more.is = IsLimit
			}
			r.headerLines(&more, v)
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

// lists reports whether a field without an asterisk lists a header, which takes precedence.
func (p *Profile) lists(name string) bool {
	return slices.ContainsFunc(p.Fields, func(f Field) bool { return strings.EqualFold(f.Header, name) })
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
