package profile

import (
	"cmp"
	"strings"
	"time"
)

// A label is what the name of a header says about its value.
type label struct {
	is     Meaning
	stem   string        // the name up to the word for a limit: what has one stem belongs together
	key    string        // the name of the policy, as it stands in the header
	policy string        // the same, or the owner's if there is none
	in     time.Duration // the unit of a number, or 0
	rank   int8          // of several resets of a policy the one of the least rank counts
	weak   bool          // the word for a limit is not "rate limit", so it may be one of something else
	field  *Field        // the profile's, or nil
}

// Meanings that no profile lists.
const (
	isAll      Meaning = 0x80 + iota // the value says all of a policy
	isFillRate                       // how many units a bucket gets in each window
)

// meaningOf returns what a word says, whatever the case of its first letter is, or IsCustom.
func meaningOf(word string) Meaning {
	switch word[min(1, len(word)):] {
	case "imit", "ax", "otal", "uota", "llowed":
		return IsLimit
	case "emaining", "emain", "vailable", "eft":
		return IsRemaining
	case "sed", "bserved", "ount":
		return IsUsed
	case "eset", "esets", "esettime", "xpire", "xpires", "ext":
		return IsReset
	case "indow", "eriod", "nterval", "enewalperiod":
		return IsWindow
	case "etry", "etryafter":
		return IsRetryAfter
	case "illrate":
		return isFillRate
	case "olicy":
		return IsRateLimitPolicy
	case "esource", "ucket", "ame":
		return IsName
	}
	return IsCustom
}

// qualifier reads a word after a meaning: the unit of a number, and the rank of a reset.
func qualifier(word string) (unit time.Duration, rank int8, ok bool) {
	switch word {
	case "Ms", "Milliseconds", "Millis":
		return time.Millisecond, 0, true
	case "After", "In":
		return time.Second, 1, true
	case "Seconds", "Secs", "Sec":
		return time.Second, 2, true
	case "At", "Time", "Timestamp", "Date", "Utc":
		return 0, plainReset + 1, true
	}
	return 0, 0, false
}

// plainReset is the rank of a reset that does not say what it counts.
const plainReset = 3

// words are those of a name in the spelling of net/http.
type words struct {
	name string
	at   [12]uint8 // where each begins
	n    int
}

// split returns no words of a name that is too long.
func split(name string) (w words) {
	w.name = name
	for i := range len(name) {
		if i > 0 && name[i-1] != '-' {
			continue
		}
		if w.n == len(w.at) || i > maxName {
			return words{}
		}
		w.at[w.n] = uint8(i)
		w.n++
	}
	return w
}

// from returns the words from i to before j.
func (w *words) from(i, j int) string {
	switch {
	case i >= j:
		return ""
	case j < w.n:
		return w.name[w.at[i] : w.at[j]-1]
	}
	return w.name[w.at[i]:]
}

func (w *words) word(i int) string { return w.from(i, i+1) }

// labelOf reads a name such as X-Vendor-Ratelimit-Tokens-Remaining or X-Rate-Limit-Limit-Minute:
// an owner, a word for a limit, and a meaning next to the name of a policy. If that is missing, the
// policy has the owner's name. Without a word for a limit only what remains counts, because a Limit
// or a Total may be that of a page.
func labelOf(name string) (l label, ok bool) {
	w := split(name)
	owner, first := 0, 0 // the owner's words, and the first after the word for a limit
	for i := 0; i < w.n && first == 0; i++ {
		word := w.word(i)
		before, found := strings.CutSuffix(strings.TrimSuffix(word, "s"), "imit")
		switch {
		case word == "Beta": // is for information
			return l, false
		case !found || before == "":
		case len(before) > 1: // Ratelimit, Mediaratelimit, Burstlimit
			before = before[:len(before)-1]
			before, found = strings.CutSuffix(before, "rate")
			if l.weak = !found && before != "Rate"; before != "Rate" {
				l.policy = before
			}
			owner, first = i, i+1
		case i > 0 && w.word(i-1) == "Rate":
			owner, first = i-1, i+1
		}
	}
	x := 0
	if w.n > 0 && w.word(0) == "X" {
		x = 1
	}
	if first == 0 {
		l = label{is: IsRemaining, stem: w.from(0, w.n-1), policy: w.from(x, w.n-1), weak: true}
		return l, w.n > 1 && w.word(w.n-1) == "Remaining"
	}
	l.stem = w.from(0, first)
	l.policy = cmp.Or(l.policy, w.from(x, owner))
	return l, l.meaning(&w, first)
}

// meaning reads the words from first on.
func (l *label) meaning(w *words, first int) bool {
	end := w.n
	l.rank = plainReset
	for ; end > first; end-- {
		unit, rank, ok := qualifier(w.word(end - 1))
		if !ok {
			break
		}
		l.in = cmp.Or(l.in, unit)
		if end == w.n || rank < l.rank {
			l.rank = rank
		}
	}
	switch {
	case first == w.n:
		l.is, l.weak = isAll, true
		return true
	case end == first:
		l.is, l.in = IsRetryAfter, 0
		return w.word(first) == "After" && !l.weak
	}
	last, name := w.word(end-1), w.from(first, end-1)
	l.is = meaningOf(last)
	switch w.word(first) {
	case "Limit", "Remaining", "Remain", "Reset", "Used", "Renewalperiod":
		if l.is != IsCustom || end == first+1 {
			break
		}
		if l.is = meaningOf(w.word(first)); l.in != time.Millisecond { // "Seconds" may be what the policy counts
			l.in, l.rank, end = 0, plainReset, w.n
		}
		name = w.from(first+1, end)
	}
	if l.is == IsCustom && end == w.n {
		name = w.from(first, w.n)
		if l.is, l.weak = isAll, true; windowOf(name) > 0 { // X-Hubspot-Ratelimit-Daily
			l.is, l.weak = IsLimit, false
		}
		for _, ending := range [...]string{"limit", "remaining", "reset"} { // X-Ratelimit-Userreset
			if before, found := strings.CutSuffix(name, ending); found && before != "" {
				l.is, l.weak, name = meaningOf(ending), false, before
			}
		}
	}
	if name != "" && name != "Time" && name != "Limit" {
		l.key, l.policy = name, name
	}
	switch l.is {
	case IsRemaining:
		if l.in > 0 { // so many seconds remain
			l.is = IsReset
		}
	case IsLimit, IsUsed:
		switch name {
		case "Type", "Scope", "Status", "State", "Reason", "Code", "Cost", "Currentrequest", "Over", "Exceeded", "Near":
			return false
		}
		return l.in == 0
	case IsRetryAfter:
		return !l.weak
	}
	return l.is != IsCustom
}
