package profile

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Rule is what a word in a response means. It makes the response a refusal. The first of a
// profile's Rules that fits counts.
type Rule struct {
	// Status is that of the responses. If it is zero, the rule fits refusals with a status below 500,
	// and all responses whose body the profile reads.
	Status int
	// In is where the words stand, with blanks between several places: headers, paths of the body's
	// JSON, which begin with a slash, and elements of its XML. "X-Error-Code /error/code <Code>" has
	// one of each. If In is empty, the Status alone fits.
	In string
	// Words are in lower case, with a bar between several. One of them must be in a value, and is not
	// a part of a longer word. An asterisk stands for any text: "limit_exceeded|*per day*".
	Words string
	// Spent narrows the rule to responses that report an exhausted policy and its reset.
	Spent bool
	// Reason is why. If it is Unknown, it is the profile's Reason, or Rate.
	Reason Reason
	// TooLarge is the Signal's. The Reason is a Lock then.
	TooLarge bool
	// Scope and Detail are the Signal's. If Detail is empty, it is the word that was found, unless that
	// is a text.
	Scope, Detail string
	// Wait is how long such a refusal takes by the API's documentation, without RetryAfter and reset.
	Wait time.Duration
}

// fits reports whether a value has one of the rule's words, and returns that part of it.
func (u *Rule) fits(value string) (word string, ok bool) {
	low := strings.ToLower(value)
	if len(low) != len(value) {
		value = low
	}
	for word := range strings.SplitSeq(u.Words, "|") {
		if from, end, ok := findWord(low, word); ok {
			return value[from:end], true
		}
	}
	return "", false
}

// findWord finds a word in a text. Asterisks in the word stand for any text.
func findWord(text, word string) (from, end int, ok bool) {
	for first := true; ; first = false {
		part, rest, star := strings.Cut(word, "*")
		for at := end; ; at++ {
			n := strings.Index(text[at:], part)
			if n < 0 {
				return 0, 0, false
			}
			at += n
			end = at + len(part)
			if part == "" || (!first || at == 0 || !isWord(text[at-1])) && (star || end == len(text) || !isWord(text[end])) {
				if first {
					from = at
				}
				break
			}
		}
		switch {
		case !star:
			return from, end, true
		case rest == "":
			return from, len(text), true
		}
		word = rest
	}
}

func isWord(c byte) bool { return isAlpha(c) || isDigit(c) || c == '_' }

// reads reports whether a header or path is one of the rule's.
func (u *Rule) reads(place string) bool {
	for in := range strings.FieldsSeq(u.In) {
		if in == place {
			return true
		}
	}
	return false
}

// about reports whether a rule is about such a response. listed says that Bodies lists it.
func (r *reader) about(u *Rule, status int, listed bool) bool {
	return (u.Status == status || u.Status == 0 && (listed || r.s.Throttled && status < 500)) &&
		(!u.Spent || slices.ContainsFunc(r.s.Policies(), func(p Policy) bool { return p.exhausted() && p.Reset > 0 }))
}

// words applies the first rule that fits, and reads the values of the body that Members lists. The
// text is nil if the profile does not read the body.
func (r *reader) words(p *Profile, status int, text []byte, listed bool) {
	s := &r.s
	first, word := len(p.Rules), ""
	var paths []string // of the body
	offer := func(i int, value string) {
		if found, ok := p.Rules[i].fits(value); ok && i < first {
			first, word = i, found
		}
	}
	for i := range p.Rules {
		u := &p.Rules[i]
		if !r.about(u, status, listed) {
			continue
		}
		if u.In == "" {
			first = min(first, i)
		}
		for place := range strings.FieldsSeq(u.In) {
			switch {
			case place[0] == '<':
				offer(i, inner(text, place, "</"+place[1:]))
			case place[0] != '/':
				for v := range r.each(lines(r.header, http.CanonicalHeaderKey(place))) {
					offer(i, v)
				}
			case text != nil:
				paths = append(paths, place[1:])
			}
		}
	}
	wait := time.Duration(None)
	if text != nil {
		r.groups, r.left = list[group]{}, maxRead
		for i := range p.Members {
			paths = append(paths, strings.TrimPrefix(p.Members[i].Header, "/"))
		}
		slices.Sort(paths)
		paths = slices.Compact(paths)
		for v := find(text, paths[:min(len(paths), maxPaths)]...); v.next(); {
			if v.value == "" {
				continue
			}
			for i := range p.Rules[:first] {
				if u := &p.Rules[i]; r.about(u, status, listed) && u.reads("/"+v.path()) {
					offer(i, v.value)
				}
			}
			for i := range p.Members {
				if f := &p.Members[i]; strings.TrimPrefix(f.Header, "/") != v.path() {
				} else if f.Is != IsRetryAfter {
					r.headerLines(f.label(f.Policy, i), []string{v.value})
				} else if d, _, ok := delay(v.value, f.In, r.clock); ok {
					wait = max(wait, d)
				}
			}
		}
		if r.finishGroups(); r.groups.n > 0 {
			r.mergePolicies()
		}
	}
	if first < len(p.Rules) {
		s.apply(&p.Rules[first], p, word)
	}
	s.ask(wait, wait >= 0 && s.Throttled)
}

// ruled reports whether a rule of a status may fit a response whose body is not read.
func (p *Profile) ruled(status int) bool {
	for i := range p.Rules { // by address: this runs for every response
		if u := &p.Rules[i]; u.Status == status && (!strings.HasPrefix(u.In, "/") || strings.IndexByte(u.In, ' ') > 0) {
			return true
		}
	}
	return false
}

// apply makes the response a refusal by a rule that has found a word.
func (s *Signal) apply(u *Rule, p *Profile, word string) {
	s.refuse(cmp.Or(u.Reason, p.Reason, Rate))
	if s.TooLarge = u.TooLarge; s.TooLarge {
		s.Reason = Lock
	}
	s.Scope, s.Wait = cmp.Or(u.Scope, s.Scope), max(s.Wait, u.Wait)
	if strings.Contains(word, " ") {
		word = ""
	}
	s.Detail = clean(cmp.Or(u.Detail, word, s.Detail))
}
