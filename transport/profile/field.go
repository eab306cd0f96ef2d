package profile

import (
	"net/http"
	"slices"
	"strings"
)

// headers reads the headers: those that the profile lists, those that mean the same everywhere, and
// the rest by their names. It reports whether there is one for Judge.
func (r *reader) headers() (custom bool) {
	star := false
	for i := range r.p.Fields {
		f := &r.p.Fields[i]
		if strings.IndexByte(f.Header, '*') >= 0 {
			star = true
		} else if v := f.lines(r.header); len(v) > 0 {
			custom = custom || f.Is == IsCustom
			r.headerLines(f.label(f.Policy, i), v)
		}
	}
	for _, one := range r.lines(star) {
		if len(one.lines) > 0 && !r.p.lists(one.name) {
			custom = r.unlisted(one.name, one.lines, star) || custom
		}
	}
	r.milliseconds()
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

// unlisted reads a header that no field without an asterisk lists. It reports whether it is for
// Judge.
func (r *reader) unlisted(name string, v []string, stars bool) (custom bool) {
	read := false
	for i := 0; stars && i < len(r.p.Fields); i++ {
		f := &r.p.Fields[i]
		before, after, star := strings.Cut(f.Header, "*")
		if star && len(name) >= len(f.Header) && strings.EqualFold(name[:len(before)], before) &&
			strings.EqualFold(name[len(name)-len(after):], after) {
			read, custom = true, custom || f.Is == IsCustom
			r.headerLines(f.label(lower(clean(name[len(before):len(name)-len(after)])), i), v)
		}
	}
	if read || stars && !aboutLimits(name) {
		return custom
	}
	if l := common[name]; l != nil {
		r.headerLines(l, v)
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
	more := *l
	for end, is := range map[string]Meaning{"-Limit": IsLimit, "-Reset": IsReset, "-Resets-In": IsReset} {
		if v := lines(r.header, l.stem+end); len(v) > 0 {
			more.is = is
			r.headerLines(&more, v)
		}
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
