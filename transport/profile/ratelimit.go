package profile

import (
	"cmp"
	"iter"
	"strings"
	"time"
)

// structured reads the fields RateLimit and RateLimit-Policy of the drafts 04 to 11.
func (r *reader) structured(limits, policies []string) {
	if len(limits) == 0 && len(policies) == 0 {
		return
	}
	from := r.s.n
	for v := range bounded(r.whole(policies, false)) {
		r.policies(v, from)
	}
	dict := isDictionary(limits)
	one, good := NewPolicy(""), true
	for v := range bounded(r.whole(limits, dict)) {
		if dict {
			good = dictionary(v, &one) && good
		} else {
			r.limits(v, from)
		}
	}
	if dict && good && one.normalize() {
		r.s.push(one)
	}
}

// whole returns the lines of a field that count: none if one of them is malformed. They are
// one field, which is then void as a whole.
func (r *reader) whole(lines []string, dict bool) []string {
	for i, v := range lines {
		v, ok := r.take(v)
		switch {
		case ok && !wellFormed(v, dict):
			return nil
		case !ok && r.left <= 0:
			return lines[:i]
		}
	}
	return lines
}

// bounded returns those lines that are not too long, without the blanks around them.
func bounded(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range lines {
			if len(v) <= maxValue && !yield(strings.Trim(v, " \t")) {
				return
			}
		}
	}
}

// wellFormed reports whether a line is a list or a dictionary.
func wellFormed(v string, dict bool) bool {
	var it item
	f := fields{s: v, dict: dict}
	for f.item(&it) {
	}
	return !f.bad
}

// isDictionary recognizes draft 07, whose RateLimit is a dictionary.
func isDictionary(lines []string) bool {
	for _, v := range lines {
		f := fields{s: v, dict: true}
		if f.skip(" \t"); f.end() || len(v) > maxValue {
			continue
		}
		return f.key() != "" && f.peek() == '='
	}
	return false
}

// dictionary reads a line of draft 07. It reports whether all its values are integers of 0 or
// more. Of a key that comes twice, RFC 9651 takes the last value; here the one counts by which
// fewer calls go, as with all other headers, because each line may come from another server.
func dictionary(v string, p *Policy) bool {
	var it item
	for f := (fields{s: v, dict: true}); f.item(&it); {
		d, ok := seconds(it.value)
		switch it.key {
		case "limit":
			p.least(&p.Limit, float64(it.value.n))
		case "remaining":
			p.least(&p.Remaining, float64(it.value.n))
		case "reset":
			if d <= maxReset {
				p.Reset = max(p.Reset, d)
			}
		default:
			ok = true
		}
		if !ok {
			return false
		}
	}
	return true
}

// policies reads a line of RateLimit-Policy: quotas up to draft 07, and later policies with
// names.
func (r *reader) policies(v string, from int) {
	var it item
	for f := (fields{s: v}); f.item(&it); {
		if it.value.kind == integer {
			r.quota(it.value.n, it.w)
			continue
		}
		name, ok := it.value.name()
		if !ok || it.q.kind != integer || it.q.n < 0 {
			continue
		}
		window, ok := seconds(it.w)
		if it.w.kind != none && (!ok || window == 0) {
			continue
		}
		unit, ok := it.qu.name()
		if it.qu.kind != none && !ok || it.pk.kind != none && it.pk.kind != octets {
			continue
		}
		p := r.named(clean(name), it.pk.bytes(), from)
		if p == nil {
			return
		}
		p.least(&p.Limit, float64(it.q.n))
		p.Window = max(p.Window, window)
		if p.Unit = clean(unit); unit == "concurrent-requests" {
			p.Kind = InFlight
		}
	}
}

// limits reads a line of RateLimit since draft 08. The working group has considered the names
// a for r, and w for t.
func (r *reader) limits(v string, from int) {
	var it item
	for f := (fields{s: v}); f.item(&it); {
		name, ok := it.value.name()
		if !ok || it.pk.kind != none && it.pk.kind != octets {
			continue
		}
		remaining, reset := cmp.Or(it.r, it.a), cmp.Or(it.t, it.w)
		if remaining.kind != none && (remaining.kind != integer || remaining.n < 0) {
			continue
		}
		d, ok := seconds(reset)
		if reset.kind != none && !ok {
			continue
		}
		if ok = ok && d <= maxReset; remaining.kind == none && !ok {
			continue
		}
		p := r.named(clean(name), it.pk.bytes(), from)
		if p == nil {
			return
		}
		if remaining.kind == integer {
			p.least(&p.Remaining, float64(remaining.n))
		}
		if ok {
			p.Reset = max(p.Reset, d)
		}
		p.normalize()
	}
}

// named returns the policy of a name and partition among those since from. If one of the
// fields does not tell a partition, that of the other counts.
func (r *reader) named(name string, partition []byte, from int) *Policy {
	all := r.s.Policies()
	for i := from; i < len(all); i++ {
		p := &all[i]
		if p.Name == name && (len(p.Partition) == 0 || len(partition) == 0 || string(p.Partition) == string(partition)) {
			if len(p.Partition) == 0 {
				p.Partition = partition
			}
			return p
		}
	}
	p := NewPolicy(name)
	p.Partition = partition
	return r.s.push(p)
}

// mergePolicies joins what the API has told twice, and gives the quotas of the drafts 00 to
// 07 to the policies that they are about.
func (r *reader) mergePolicies() {
	r.merge()
	all := r.s.Policies()
	n := len(all)
	for i, q := range r.quotas[:r.nQuotas] {
		if p := windowless(all[:n], q.limit); p != nil {
			p.Window = q.window
			r.quotas[i].window = 0
		}
	}
	for _, q := range r.quotas[:r.nQuotas] {
		if q.window == 0 {
			continue
		}
		// The only quota is that of the only policy, although the API has lowered that limit
		// for now.
		if r.nQuotas == 1 && n == 1 && all[0].Name == "" && all[0].Window == 0 {
			all[0].Window = q.window
			continue
		}
		p := NewPolicy("")
		p.Limit, p.Window = q.limit, q.window
		r.s.push(p)
	}
}

func windowless(all []Policy, limit float64) *Policy {
	for i := range all {
		if p := &all[i]; p.Limit == limit && p.Window == 0 && p.Name == "" {
			return p
		}
	}
	return nil
}

// merge drops policies that another family of headers has told already. Only the same limit
// with the same reset is the same: Jira tells of different ones in two families.
func (r *reader) merge() {
	for i := 0; i < r.s.n; i++ {
		for j := i + 1; j < r.s.n; j++ {
			all := r.s.Policies()
			if all[i].same(&all[j]) {
				r.s.drop(j)
				j--
			}
		}
	}
}

// same reports whether q tells of the same as p. If so, p takes over what it has not told
// itself.
func (p *Policy) same(q *Policy) bool {
	if p.Limit < 0 || p.Limit != q.Limit || p.Reset < 0 || q.Reset < 0 ||
		(p.Reset-q.Reset).Abs() > 2*time.Second || p.Name != "" && q.Name != "" {
		return false
	}
	if q.Remaining >= 0 {
		p.least(&p.Remaining, q.Remaining)
	}
	if p.Absolute && !q.Absolute { // a time from now needs no clock
		p.Reset, p.Absolute = q.Reset, false
	}
	if p.Name == "" {
		p.Name = q.Name
	}
	if p.Window == 0 {
		p.Window = q.Window
	}
	return true
}
