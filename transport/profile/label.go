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

// meaningOf is what a word says, or IsCustom.
var meaningOf = spelled(map[Meaning]string{
	IsLimit: "limit max total quota allowed", IsRemaining: "remaining remain available left", IsUsed: "used observed count",
	IsReset: "reset resets resettime expire expires next", IsWindow: "window period interval renewalperiod",
	IsRetryAfter: "retry retryafter", isFillRate: "fillrate", IsRateLimitPolicy: "policy", IsName: "resource bucket name",
})

// A qualifier is a word after a meaning: the unit of a number, and the rank of a reset.
type qualifier struct {
	unit time.Duration
	rank int8
}

var qualifiers = spelled(map[qualifier]string{
	{time.Millisecond, 0}: "ms milliseconds millis", {time.Second, 1}: "after in", {time.Second, 2}: "seconds secs sec",
	{0, plainReset + 1}: "at time timestamp date utc",
})

// spelled returns the meanings of words, with and without a capital, from those that mean the same.
func spelled[T comparable](lists map[T]string) map[string]T {
	all := map[string]T{}
	for meaning, list := range lists {
		for word := range strings.FieldsSeq(list) {
			all[word], all[strings.ToUpper(word[:1])+word[1:]] = meaning, meaning
		}
	}
	return all
}

// plainReset is the rank of a reset that does not say what it counts.
const plainReset = 3

// cutLast returns the last word of a name, and the words before it.
func cutLast(name string) (before, last string) {
	i := strings.LastIndexByte(name, '-')
	return name[:max(i, 0)], name[i+1:]
}

// labelOf reads a name such as X-Vendor-Ratelimit-Tokens-Remaining or X-Rate-Limit-Limit-Minute:
// an owner, a word for a limit, and a meaning next to the name of a policy. If that is missing, the
// policy has the owner's name. Without a word for a limit only what remains counts, because a Limit
// or a Total may be that of a page.
func labelOf(name string) (l label, ok bool) {
	if len(name) > maxName {
		return l, false
	}
	begin, end := 0, 0 // of the word for a limit
	for at, previous := 0, ""; at < len(name) && end == 0; {
		word, _, _ := strings.Cut(name[at:], "-")
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
			begin, end = at, at+len(word)
		case previous == "Rate":
			begin, end = at-len("Rate-"), at+len(word)
		}
		previous, at = word, at+len(word)+1
	}
	if end == 0 {
		l.stem, ok = strings.CutSuffix(name, "-Remaining")
		return label{is: IsRemaining, stem: l.stem, policy: strings.TrimPrefix(l.stem, "X-"), weak: true}, ok
	}
	l.stem = name[:end]
	l.policy = cmp.Or(l.policy, strings.TrimSuffix(strings.TrimPrefix(name[:begin], "X-"), "-"))
	return l, l.meaning(strings.TrimPrefix(name[end:], "-"))
}

// meaning reads the words after the one for a limit.
func (l *label) meaning(all string) bool {
	l.rank = plainReset
	words := all // without the qualifiers at the end
	for words != "" {
		before, last := cutLast(words)
		q, ok := qualifiers[last]
		if !ok {
			break
		}
		l.in = cmp.Or(l.in, q.unit)
		if words == all || q.rank < l.rank {
			l.rank = q.rank
		}
		words = before
	}
	switch {
	case all == "":
		l.is, l.weak = isAll, true
		return true
	case words == "":
		l.is, l.in = IsRetryAfter, 0
		return strings.HasPrefix(all, "After") && !l.weak
	}
	name, last := cutLast(words)
	l.is = meaningOf[last]
	switch first, _, several := strings.Cut(words, "-"); first {
	case "Limit", "Remaining", "Remain", "Reset", "Used", "Renewalperiod":
		if l.is != IsCustom || !several {
			break
		}
		if l.is = meaningOf[first]; l.in != time.Millisecond { // "Seconds" may be what the policy counts
			l.in, l.rank, words = 0, plainReset, all
		}
		name = words[len(first)+1:]
	}
	if l.is == IsCustom && words == all {
		name = all
		if l.is, l.weak = isAll, true; windowOf(name) > 0 { // X-Hubspot-Ratelimit-Daily
			l.is, l.weak = IsLimit, false
		}
		for _, ending := range [...]string{"limit", "remaining", "reset"} { // X-Ratelimit-Userreset
			if before, found := strings.CutSuffix(name, ending); found && before != "" {
				l.is, l.weak, name = meaningOf[ending], false, before
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
