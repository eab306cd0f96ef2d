package profile

import (
	"math"
	"slices"
	"strings"
	"time"
)

// structured reads the fields RateLimit and RateLimit-Policy of the drafts 04 to 11.
func (r *reader) structured(limits, policies []string) {
	if len(limits) == 0 && len(policies) == 0 {
		return
	}
	from := r.s.n
	var it item
	for m := r.members(policies, false); m.next(&it); {
		r.policy(&it, from)
	}
	dict := isDictionary(limits)
	one, good := NewPolicy(""), true
	for m := r.members(limits, dict); m.next(&it); {
		if dict {
			good = one.member(&it) && good
		} else {
			r.remainder(&it, from)
		}
	}
	if dict && good && one.normalize() {
		r.s.push(one)
	}
}

// members are the items of the lines of one field.
type members struct {
	lines  []string
	fields fields
}

// members returns the items of a field: none if a line is malformed, because that voids the field.
func (r *reader) members(lines []string, dict bool) members {
	m := members{fields: fields{dict: dict}}
	for i, v := range lines {
		if strings.Contains(v, `";"`) {
			lines = slices.Clone(lines)
			lines[i] = lastNames(v)
			v = lines[i]
		}
		if v, ok := r.take(v); ok && !wellFormed(v, dict) {
			return members{}
		} else if ok || r.left > 0 {
			m.lines = lines[:i+1]
		}
	}
	return m
}

// lastNames leaves the last of several names that an item has, as Hugging Face sends them:
// "fixed window";"api";q=500;w=300.
func lastNames(v string) string {
	for len(v) <= maxValue {
		i := strings.Index(v, `";"`)
		from := strings.LastIndexByte(v[:max(i, 0)], '"')
		if from < 0 {
			break
		}
		v = v[:from] + v[i+2:]
	}
	return v
}

func (m *members) next(it *item) bool {
	for !m.fields.item(it) {
		if len(m.lines) == 0 {
			return false
		}
		if v := m.lines[0]; len(v) <= maxValue {
			m.fields = fields{s: trim(v), dict: m.fields.dict}
		}
		m.lines = m.lines[1:]
	}
	return true
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

// member reads a member of draft 07's dictionary. It reports whether the value is a number of 0
// or more. If a key comes twice, RFC 9651 takes the last value. Here the one counts by which fewer
// calls go, as with all other headers, because each line may come from another server.
func (p *Policy) member(it *item) bool {
	d, ok := seconds(it.value)
	switch it.key {
	case "limit":
		p.least(&p.Limit, float64(it.value.n))
	case "remaining":
		p.least(&p.Remaining, float64(it.value.n))
	case "reset":
		if it.value.kind == decimal { // Close sends 5.5
			var n float64
			n, ok = number(it.value.text)
			d = duration(n, time.Second)
		}
		if ok && d <= maxReset {
			p.Reset = max(p.Reset, d)
		}
	default:
		return true
	}
	return ok
}

// policy reads an item of RateLimit-Policy: a quota up to draft 07, and later a policy with a name.
func (r *reader) policy(it *item, from int) {
	if it.value.kind == integer {
		r.quota(it.value.n, it.w)
		return
	}
	window, timed := seconds(it.w)
	unit, named := it.qu.name()
	if it.q.kind != integer || it.q.n < 0 || it.w.kind != none && (!timed || window == 0) || it.qu.kind != none && !named {
		return
	}
	if p := r.named(it, from); p != nil {
		p.least(&p.Limit, float64(it.q.n))
		p.Window = max(p.Window, window)
		if p.Unit = clean(unit); unit == "concurrent-requests" {
			p.Kind = InFlight
		}
	}
}

// remainder reads an item of RateLimit since draft 08. The working group has considered the names a
// for r, and w for t.
func (r *reader) remainder(it *item, from int) {
	remaining, reset := it.r.or(it.a), it.t.or(it.w)
	d, ok := seconds(reset)
	if remaining.kind != none && (remaining.kind != integer || remaining.n < 0) || reset.kind != none && !ok {
		return
	}
	if ok = ok && d <= maxReset; remaining.kind == none && !ok {
		return
	}
	p := r.named(it, from)
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

// named returns the policy of an item's name and partition among those since from, or nil if it has
// no name, or if there are too many. If one of the fields has no partition, that of the other
// counts.
func (r *reader) named(it *item, from int) *Policy {
	name, ok := it.value.name()
	if !ok || it.pk.kind != none && it.pk.kind != octets {
		return nil
	}
	name = clean(name)
	partition := it.pk.bytes()
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

// mergePolicies joins what the API has sent twice, and gives the quotas of the drafts 00 to 07 to
// the policies that they are about.
func (r *reader) mergePolicies() {
	r.merge()
	all := r.s.Policies()
	for i := range all {
		if all[i].leaks() {
			all[i].Kind = Bucket
		}
	}
	quotas := 0
	for i := range all {
		if all[i].quota {
			quotas++
		}
	}
	for i := 0; i < r.s.n; i++ {
		if q := &all[i]; q.quota {
			// The only quota is that of the only policy, although the API has lowered that limit
			// for now.
			only := quotas == 1 && r.s.n == 2
			j := slices.IndexFunc(all[:r.s.n], func(p Policy) bool {
				return !p.quota && p.Name == "" && p.Window == 0 && (only || p.Limit == q.Limit)
			})
			if j >= 0 {
				all[j].Window = q.Window
				r.s.drop(i)
				i--
			}
		}
	}
	r.witness()
}

// witness recognizes a Retry-After in milliseconds by a reset of about a thousandth of it. A number
// of whole minutes is in seconds.
func (r *reader) witness() {
	s := &r.s
	ms := s.RetryAfter.Seconds()
	if s.Absolute || ms < 500 || math.Mod(ms, 60) == 0 {
		return
	}
	for i := range s.Policies() {
		if reset := s.Policies()[i].Reset.Seconds(); reset > 0 && ms >= 500*reset && ms <= 1050*reset {
			s.RetryAfter = duration(ms, time.Millisecond)
			return
		}
	}
}

// merge drops policies that another family of headers has already. Only the same limit with the
// same reset is the same: Jira sends different ones in two families.
func (r *reader) merge() {
	for i := 0; i < r.s.n; i++ {
		for j := i + 1; j < r.s.n; j++ {
			all := r.s.Policies()
			if all[i].same(&all[j]) {
				r.s.drop(j)
				j--
			} else {
				all[i].twin(&all[j])
				all[j].twin(&all[i])
			}
		}
	}
}

// twin takes the reset of a policy that has the same numbers and no window.
func (p *Policy) twin(q *Policy) {
	if p.Reset < 0 && q.Reset >= 0 && q.Reset <= p.Window && q.Window == 0 && q.Name == "" &&
		p.Limit >= 0 && p.Limit == q.Limit && p.Remaining == q.Remaining {
		p.Reset, p.Absolute = q.Reset, q.Absolute
	}
}

// same reports whether q is the policy p. If so, p takes over what it lacks.
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
