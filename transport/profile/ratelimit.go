package profile

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// structured reads RateLimit or RateLimit-Policy of the drafts 04 to 11. A malformed line voids the
// field.
func (r *reader) structured(l *label, lines []string) {
	text := ""
	for v := range r.each(lines) {
		if text != "" && v != "" {
			text += joined
		}
		text += lastNames(v)
	}
	f := fields{s: text}
	first := f
	f.dict = l.is == IsRateLimit && first.key() != "" && first.peek() == '=' // draft 07
	before := r.s
	before.many = slices.Clone(before.many)
	one, good, field := NewPolicy(""), true, cmp.Or(l.field, &Field{})
	it := item{}
	for n := 0; f.item(&it); n++ {
		switch {
		case n > 2*maxPolicies:
			f.bad = true
		case f.dict:
			good = one.member(&it) && good
		case l.is == IsRateLimit:
			r.remainder(&it, field)
		default:
			r.policy(&it, field)
		}
	}
	if f.bad {
		r.s = before
	} else if f.dict && good && one.normalize() {
		r.s.push(one)
	}
}

// lastNames leaves the last of several names that an item has, as Hugging Face sends them:
// "fixed window";"api";q=500;w=300.
func lastNames(v string) string {
	for {
		i := strings.Index(v, `";"`)
		from := strings.LastIndexByte(v[:max(i, 0)], '"')
		if from < 0 {
			return v
		}
		v = v[:from] + v[i+2:]
	}
}

// wellFormed reports whether a line is a list.
func wellFormed(v string) bool {
	f := fields{s: v}
	for it := (item{}); f.item(&it); {
	}
	return !f.bad
}

// member reads a member of draft 07's dictionary. It reports whether the value is a number of 0
// or more. If a key comes twice, RFC 9651 takes the last value. Here the one counts by which fewer
// calls go, as with all other headers, because each line may come from another server.
func (p *Policy) member(it *item) bool {
	n, ok := it.value.integer()
	switch it.key {
	case "limit":
		p.least(&p.Limit, n)
	case "remaining":
		p.least(&p.Remaining, n)
	case "reset":
		n, ok = number(it.value.text) // Close sends 5.5
		p.resets(duration(n, time.Second))
	default:
		return true
	}
	return ok
}

// resets counts one reset of several.
func (p *Policy) resets(d time.Duration) {
	if d <= maxReset {
		p.Reset = max(p.Reset, d)
	}
}

// policy reads an item of RateLimit-Policy: a quota up to draft 07, and later a policy with a name.
func (r *reader) policy(it *item, f *Field) {
	w, qu := it.get("w", "window"), it.get("qu")
	window, timed := w.seconds()
	if limit, ok := it.value.integer(); ok {
		r.quota(limit, window)
		return
	}
	limit, ok := it.get("q").integer()
	unit, named := qu.name()
	if !ok || w.kind != none && (!timed || window == 0) || qu.kind != none && !named {
		return
	}
	if p := r.named(it, f); p != nil {
		p.least(&p.Limit, limit)
		p.Window = max(p.Window, window)
		if p.Unit = cmp.Or(clean(unit), p.Unit); unit == "concurrent-requests" {
			p.Kind = InFlight
		}
	}
}

// remainder reads an item of RateLimit since draft 08. The working group has considered the names a
// for r, and w for t.
func (r *reader) remainder(it *item, f *Field) {
	rest, reset := it.get("r", "a"), it.get("t", "w")
	n, ok := rest.integer()
	d, timed := reset.seconds()
	if rest.kind != none && !ok || reset.kind != none && !timed || !ok && (!timed || d > maxReset) {
		return
	}
	if p := r.named(it, f); p != nil {
		if ok {
			p.least(&p.Remaining, n)
		}
		if timed {
			p.resets(d)
		}
	}
}

// named returns the policy of an item's name and partition, or nil if it has no name, or if there
// are too many. If one of the fields has no partition, that of the other counts.
func (r *reader) named(it *item, f *Field) *Policy {
	name, ok := it.value.name()
	pk := it.get("pk")
	if !ok || pk.kind != none && pk.kind != octets {
		return nil
	}
	one := NewPolicy(clean(name))
	one.Kind, one.Unit, one.Partition, one.beta = f.Kind, f.Unit, pk.bytes(), strings.HasPrefix(f.Header, "Beta-")
	all := r.s.Policies()
	for i := range all {
		p := &all[i]
		if p.Name == one.Name && p.beta == one.beta && (p.Partition == nil || one.Partition == nil || bytes.Equal(p.Partition, one.Partition)) {
			if p.Partition == nil {
				p.Partition = one.Partition
			}
			return p
		}
	}
	return r.s.push(one)
}

// mergePolicies makes one policy of what the API has sent twice.
func (r *reader) mergePolicies() {
	s := &r.s
	for i := 0; i < s.n; i++ {
		for j := i + 1; j < s.n; j++ {
			if all := s.Policies(); all[i].same(&all[j], s.n == 2) {
				all[i].join(&all[j])
				s.drop(j)
				j--
			} else {
				all[i].twin(&all[j])
				all[j].twin(&all[i])
			}
		}
	}
	for i := range s.Policies() {
		if p := &s.Policies()[i]; p.normalize() && p.leaks() {
			p.Kind = Bucket
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

// same reports whether two policies are one, from different headers. They have the same limit and
// the same reset: Jira sends different ones in two families. Or one is a quota of the drafts 00 to
// 07 with the window of the other. The only quota is that of the only policy, although the API has
// lowered that limit for now.
func (p *Policy) same(q *Policy, only bool) bool {
	if p.quota || q.quota {
		return p.Name == q.Name && (p.Limit == q.Limit && p.Window == q.Window ||
			p.quota != q.quota && (p.Window == 0 || q.Window == 0) && (p.Limit == q.Limit || only))
	}
	return p.Limit >= 0 && p.Limit == q.Limit && p.Reset >= 0 && q.Reset >= 0 &&
		(p.Reset-q.Reset).Abs() <= 2*time.Second && (p.Name == "" || q.Name == "")
}

// twin takes the reset of a policy that has the same numbers and no window.
func (p *Policy) twin(q *Policy) {
	if p.Reset < 0 && q.Reset >= 0 && q.Reset <= p.Window && q.Window == 0 && q.Name == "" &&
		p.Limit >= 0 && p.Limit == q.Limit && p.Remaining == q.Remaining {
		p.Reset, p.Absolute = q.Reset, q.Absolute
	}
}

// join takes over what the policy lacks from another that is the same.
func (p *Policy) join(q *Policy) {
	if p.quota {
		*p, *q = *q, *p
	}
	if q.Remaining >= 0 {
		p.least(&p.Remaining, q.Remaining)
	}
	if p.Limit < 0 {
		p.Limit = q.Limit
	}
	if p.Reset < 0 || p.Absolute && q.Reset >= 0 && !q.Absolute { // a time from now needs no clock
		p.Reset, p.Absolute = q.Reset, q.Absolute
	}
	p.Name, p.Window = cmp.Or(p.Name, q.Name), cmp.Or(p.Window, q.Window)
}
