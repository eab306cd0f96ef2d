package main

import (
	"regexp"
	"strings"
)

// maxWords is the length of a long sentence, maxErrorWords that of a long error text.
const (
	maxWords      = 30
	maxErrorWords = 14
	maxWidth      = 100
)

// rule is a habit that plain English does without. It counts the sentences that it matches.
type rule struct {
	name    string
	pattern *regexp.Regexp
	instead string // what to write
}

const (
	negation = `\b(?:no|not|none|never|nothing|nor|neither|without|cannot|can't|isn't|doesn't|don't|won't)\b`
	second   = `\b(?:no|not|none|never|nothing|nor|neither|without|cannot|can't|isn't|doesn't|don't|won't|unless|except)\b`
	auxiliar = `(?:is|are|was|were|does|do|did|has|have|had|can|could|may|will|would|should|must)`
)

// sentenceRules look at one sentence each.
var sentenceRules = []rule{
	{"invert", join(
		`^Of (?:a|an|the|all|each|any|what|which|these|those|such|several|two|others|buckets|limits|calls|keys|processes|units|windows|jobs)\b`,
		`^(?:So|Nor|Neither|Only then|Never) `+auxiliar+`\b`,
		`, nor `+auxiliar+`\b`,
		`\b(?:be it|be they|so does|as do|as does)\b`,
	), "subject, verb, object"},
	{"which", join(`(?i)\b(?:of|to|by|in|with|from|under|for|on|after|beside|at|above|below|behind|through) (?:which|whom|whose)\b`),
		"two sentences"},
	{"archaic", join(
		`\b(?:anew|in vain|thereof|thereby|whereupon|lest|but for|besides|for want of|kin|foretells?|foretold|for good|as of before|one after the other|such a one)\b`,
		`(?i)\b(?:is|are) to (?:be|come|go|have|last|stay|run|wait|take|know|show)\b`,
		`(?i)\b(?:what (?:becomes|became|has become|comes|came) of|be no use|no more than that)\b`,
		`, also (?:if|while|when|where|after|without|none|one|in|by|to|of|against)\b`,
	), "again, without success, permanently, next to, except; a process must, a call can"},
	{"persona", join(`\b(?:tells?|told|telling|untold|hears?|heard|heeds?|heeded|say so|says so|knows? nothing|say nothing|says nothing)\b`),
		"return, report, notify, learn from a reply"},
	{"nobody", join(`(?i)\b(?:nobody|somebody|anybody|everybody|whoever|whomever|who (?:waits|comes|asks|calls|books|looks|gives|may)|those who|all who)\b`, `\bothers\b`),
		"name the actor: call, queue, process, store, API"},
	{"negations", join(`(?i)` + negation + `.*` + second), "the positive first, one negation a sentence"},
	{"stub", join(`(?:^|[.;:] )(?:0|nil|""|[Zz]ero|[Ee]mpty|[Bb]elow 0|0 or less|None|[Tt]rue|[Ff]alse|The zero [A-Z]\w+): ?`),
		`"If X is zero, …"`},
	{"private", join(
		`(?i)\b(?:brim|way back|desk|garbage|unmade|beside|drips?|dripping|at once|no room|room for|put back|puts back|fleetwide)\b`,
		`(?i)\b(?:its|their|a|no|the|one|last|next|other|whose) (?:place|turn)s?\b`,
		`(?i)\b(?:comes?|came|gives?|gave|given) back\b`,
		`\b(?:the judges?|the exam|the gate)\b`,
	), "call, limit, permit, reservation, hold, round trip, next to, capacity, process"},
	{"inner", join(`(?i)\b(?:the law|lawful|the dial|dial time|episodes?|epochs?|another life|a life|piggyback\w*|bucket time|trips?)\b`),
		"an ordinary word: only ARCHITECTURE.md, RECIPES.md, outbound/store and internal packages use these"},
}

// ordinary phrases have private words in their usual sense.
var ordinary = regexp.MustCompile(`(?i)\b(?:Unix epoch|garbage collect(?:or|ion|ed)|round[ -]trips?|RoundTrip\w*|in its place|takes? (?:its |the )?place|in the (?:first|same|last) place)\b`)

var oddError = join(
	`(?i)\b(?:it|its|which|whose|somebody|nobody|anew|tells?|told|heard|has lost|no room|away|beside|at once)\b`,
	`(?i)\b(?:that is none|makes no sense|an n of|is no [a-z]+)\b`,
)

var thereIsNo = regexp.MustCompile(`(?i)\bthere is no\b`)

// inner packages and pages may use the words of the rule of this name.
func innerPlace(name string) bool {
	return name == "outbound/store" || strings.HasPrefix(name, "outbound/store/") ||
		strings.HasPrefix(name, "outbound/internal/") || strings.HasSuffix(name, "ARCHITECTURE.md") || strings.HasSuffix(name, "RECIPES.md")
}

func join(patterns ...string) *regexp.Regexp {
	for i, p := range patterns {
		flags := ""
		if rest, ok := strings.CutPrefix(p, "(?i)"); ok {
			p, flags = rest, "i"
		}
		patterns[i] = "(?" + flags + ":" + p + ")"
	}
	return regexp.MustCompile(strings.Join(patterns, "|"))
}

var (
	code  = regexp.MustCompile("`[^`]*`|https?://\\S+")
	links = regexp.MustCompile(`\[([^\]]*)\](?:\([^)]*\))?`)
	ends  = regexp.MustCompile(`([.!?])["')\]*]*\s+`)
	short = strings.NewReplacer("e.g. ", "eg ", "i.e. ", "ie ", "etc. ", "etc ", "vs. ", "vs ")
)

// sentences splits a paragraph. Code and addresses become one word, links their text.
func sentences(paragraph string) []string {
	text := short.Replace(code.ReplaceAllString(paragraph, "X"))
	text = strings.Join(strings.Fields(links.ReplaceAllString(text, "$1")), " ")
	var all []string
	for _, s := range strings.Split(ends.ReplaceAllString(text, "$1\x00"), "\x00") {
		if len(strings.Fields(s)) >= 2 {
			all = append(all, strings.TrimSpace(s))
		}
	}
	return all
}

// habits lists the rules that a sentence breaks.
func habits(sentence string, inner bool) []string {
	var names []string
	if len(strings.Fields(sentence)) > maxWords {
		names = append(names, "long")
	}
	for _, r := range sentenceRules {
		text := sentence
		if r.name == "private" || r.name == "inner" {
			text = ordinary.ReplaceAllString(text, "X")
		}
		if r.name == "inner" && inner {
			continue
		}
		if r.pattern.MatchString(text) {
			names = append(names, r.name)
		}
	}
	return names
}

// isOddError reports whether an error text is long or uses a word that an operator does not search for.
func isOddError(text string) bool {
	return len(strings.Fields(text)) > maxErrorWords || oddError.MatchString(thereIsNo.ReplaceAllString(text, ""))
}
