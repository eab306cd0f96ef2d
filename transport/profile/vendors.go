package profile

import (
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const day = 24 * time.Hour

// builtin are the profiles of this package.
var builtin []*Profile

// add makes a profile known to [ByName]. Each exported variable has its value from another, so that
// go doc shows "var GitHub *Profile = gitHub" and not all fields.
func add(p Profile) *Profile {
	builtin = append(builtin, &p)
	return &p
}

// ByName returns the profile of an API by its name, such as "github" or "shopify-graphql",
// for configuration files. It knows the names of this package's profiles, other names of the
// same APIs, and those of APIs for which [Generic] is enough. It ignores case, and what
// stands between the words of a name.
func ByName(name string) (*Profile, bool) {
	name = plain(name)
	for _, p := range builtin {
		if name != "" && (plain(p.Name) == name || slices.Contains(strings.Fields(p.also), name)) {
			return p, true
		}
	}
	return nil, false
}

// plain returns a name's letters and digits, in lower case.
func plain(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= utf8.RuneSelf || !isAlpha(byte(c)) && !isDigit(byte(c)) {
			return -1
		}
		return unicode.ToLower(c)
	}, name)
}

// limitFields returns the fields for a limit, what remains and a reset whose headers begin
// alike.
func limitFields(prefix string, f Field) []Field {
	return headers(f, "limit "+prefix+"Limit remaining "+prefix+"Remaining reset "+prefix+"Reset")
}

// headers returns the fields of one policy. The list has a meaning and the name of a header in
// turn.
func headers(f Field, list string) (all []Field) {
	words := strings.Fields(list)
	for i := 0; i < len(words); i += 2 {
		f.Is, f.Header = meanings[words[i]], words[i+1]
		all = append(all, f)
	}
	return all
}

var meanings = map[string]Meaning{
	"custom": IsCustom, "limit": IsLimit, "remaining": IsRemaining, "used": IsUsed, "part": IsUsedOfLimit, "reset": IsReset,
	"window": IsWindow, "wait": IsRetryAfter, "name": IsName, "scope": IsScope, "detail": IsDetail,
	"ratelimit": IsRateLimit, "policy": IsRateLimitPolicy, "all": isAll,
}

// waits are the waits in errors of Discord, Dropbox, Google and more APIs. Telegram has them by
// core.telegram.org/bots/api, ResponseParameters. Close has them by developer.close.com, "Rate
// limits", and Matrix by spec.matrix.org, M_LIMIT_EXCEEDED. OpenRouter puts headers into the body.
var waits = append(headers(Field{In: time.Millisecond}, "wait /retry_after_ms wait /error/retry_after_ms"),
	headers(Field{}, `wait /retry_after wait /error/retry_after wait /parameters/retry_after
		wait /error/rate_reset wait /error/details/retryDelay
		limit /error/metadata/headers/X-RateLimit-Limit
		remaining /error/metadata/headers/X-RateLimit-Remaining
		reset /error/metadata/headers/X-RateLimit-Reset`)...)

// refuse marks the response as a refusal.
func (s *Signal) refuse(why Reason) {
	s.Throttled, s.Reason = true, why
}

// spent returns the policy that binds most, and whether nothing of it remains.
func (s *Signal) spent() (*Policy, bool) {
	p := s.Binding()
	return p, p != nil && p.Remaining == 0
}

// policy returns the policy of a name, or nil.
func (s *Signal) policy(name string) *Policy {
	if i := slices.IndexFunc(s.Policies(), func(p Policy) bool { return p.Name == name }); i >= 0 {
		return &s.Policies()[i]
	}
	return nil
}

// ask takes a wait that the API asks for elsewhere than in its headers. Headers take
// precedence.
func (s *Signal) ask(d time.Duration, ok bool) {
	if ok && (!s.HasRetryAfter || s.RetryAfter == 0) {
		s.RetryAfter, s.HasRetryAfter, s.Absolute = min(d, forever), true, false
	}
}

// items returns the parts of a list, without the blanks around them: at most as many as a
// Signal keeps policies.
func items(list, separators string) iter.Seq[string] {
	return func(yield func(string) bool) {
		n := 0
		for one := range strings.FieldsFuncSeq(list, func(c rune) bool { return strings.ContainsRune(separators, c) }) {
			if n++; n > maxPolicies || !yield(trim(one)) {
				return
			}
		}
	}
}
