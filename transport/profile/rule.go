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

// resets reports whether a policy is exhausted and says for how long.
func (s *Signal) resets() bool {
	return slices.ContainsFunc(s.Policies(), func(p Policy) bool { return p.exhausted() && p.Reset > 0 })
}

// search looks for the first rule that fits a response.
type search struct {
	rules  []Rule
	status int
	listed bool // Bodies lists the response
	first  int  // the first rule that fits, or how many there are
	word   string
}

// of reports whether a rule comes before the one that fits and is about such a response.
func (q *search) of(s *Signal, i int) bool {
	u := &q.rules[i]
	return i < q.first && (u.Status == q.status || u.Status == 0 && (q.listed || s.Throttled && q.status < 500)) &&
		(!u.Spent || s.resets())
}

// offer looks for the words of the rules in the value of a header or path.
func (q *search) offer(s *Signal, place, value string) {
	for i := range q.rules[:q.first] {
		if u := &q.rules[i]; q.of(s, i) && u.reads(place) {
			if word, ok := u.fits(value); ok {
				q.first, q.word = i, word
				return
			}
		}
	}
}

// words applies the first rule that fits, and reads the values of the body that Members lists. The
// text is nil if the profile does not read the body.
func (r *reader) words(p *Profile, status int, text []byte, listed bool) {
	s := &r.s
	q := search{rules: p.Rules, status: status, listed: listed, first: len(p.Rules)}
	for i := range p.Rules {
		u := &p.Rules[i]
		if !q.of(s, i) {
			continue
		}
		if u.In == "" {
			q.first, q.word = i, ""
		}
		for place := range strings.FieldsSeq(u.In) {
			switch {
			case place[0] == '<':
				q.offer(s, place, inner(text, place, "</"+place[1:]))
			case place[0] != '/':
				for v := range r.each(lines(r.header, http.CanonicalHeaderKey(place))) {
					q.offer(s, place, v)
				}
			}
		}
	}
	wait, waits := time.Duration(0), false
	if text != nil {
		r.groups, r.left = list[group]{}, maxRead
		for v := find(text, p.paths()...); v.next(); {
			if v.value != "" {
				q.offer(s, "/"+v.path(), v.value)
				d, ok := r.member(v.path(), v.value)
				wait, waits = max(wait, d), waits || ok
			}
		}
		if r.finishGroups(); r.groups.n > 0 {
			r.merge()
		}
	}
	if q.first < len(p.Rules) {
		s.apply(&p.Rules[q.first], p, q.word)
	}
	s.ask(wait, waits && s.Throttled)
}

// ruled reports whether a rule of a status may fit a response whose body is not read.
func (p *Profile) ruled(status int) bool {
	for i := range p.Rules { // by address: this runs for every response
		if u := &p.Rules[i]; u.Status == status && (!strings.HasPrefix(u.In, "/") || strings.Contains(u.In, " ")) {
			return true
		}
	}
	return false
}

// paths returns those of the body that Rules and Members name.
func (p *Profile) paths() []string {
	all := make([]string, 0, len(p.Members)+2*len(p.Rules))
	for i := range p.Rules {
		for place := range strings.FieldsSeq(p.Rules[i].In) {
			if place[0] == '/' && !slices.Contains(all, place[1:]) {
				all = append(all, place[1:])
			}
		}
	}
	for i := range p.Members {
		if path := strings.TrimPrefix(p.Members[i].Header, "/"); !slices.Contains(all, path) {
			all = append(all, path)
		}
	}
	return all[:min(len(all), 64)] // as many as find takes
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

// member reads one value of the body, for each of the Members with its path. It returns the wait.
func (r *reader) member(path, value string) (wait time.Duration, waits bool) {
	for i := range r.p.Members {
		f := &r.p.Members[i]
		switch {
		case strings.TrimPrefix(f.Header, "/") != path:
		case f.Is == IsRetryAfter:
			d, ok := goDuration(value)
			if !ok {
				d, _, ok = delay(value, f.In, r.clock)
			}
			wait, waits = max(wait, d), waits || ok
		default:
			r.headerLines(f.label(f.Policy, i), []string{value})
		}
	}
	return wait, waits
}
