package profile

import (
	"slices"
	"strings"
)

// OpenAI is the API of OpenAI and of its imitators: Azure OpenAI, Groq, Together and others
// (platform.openai.com, "Rate limits", 2026). Policies are named "requests", "tokens" and so on.
// Their resets, mostly as Go writes a duration, are when the bucket will be full again, so a
// success that uses up a limit does not hold the bucket. A Quota says that the credit or a day's
// budget is used up. A call that asks for more tokens than the limit of a minute is a Lock, and
// TooLarge. Azure refuses a stream inside a 200, in which less than nothing remains and a
// Retry-After stands; without that it has answered the call. OpenRouter refuses inside a 200 whose
// body has the code 429. Package outbound/estimate has the limits to configure.
var OpenAI *Profile = openAI

var openAI = add(Profile{
	Name: "openai", also: "azureopenai cerebras githubmodels groq mistral openaiazure openailike openaistyle openrouter together togetherai xai",
	Bodies: []Body{{Status: 429}, {Status: 200, Silent: true}}, Members: waits,
	Rules: append([]Rule{{Status: 200, In: "/error/code /choices/error/code", Words: "429"}}, modelRules...),
	Judge: func(r *Response, s *Signal) {
		if r.Status == 200 && s.HasRetryAfter && s.overdrawn {
			s.refuse(Rate)
		}
	},
})

// modelRules are those of language models. Some vendors answer in the form of another: Gemini where
// it is compatible with OpenAI, and Claude at Google and Amazon.
var modelRules = slices.Concat([]Rule{
	{In: "/error/code /error/type /error/details/error_code",
		Words: "*insufficient_quota*|*billing_hard_limit*|*billing_not_active*|enforced_spend_limit_reached", Reason: Quota},
	// github.com/Aider-AI/aider/issues/1880; Azure asks for a day, which says never.
	{Status: 429, In: "/error/message", Words: "request too large*|exceeded token rate limit*after 86400 seconds", TooLarge: true, Detail: "too-large"},
	// Only the message says of which time a budget is: "on requests per day (RPD)".
	{Status: 429, In: "/error/message /message", Words: "requests per day|tokens per day|free-models-per-day", Reason: Quota, Detail: "per-day"},
}, googleRules)

// Anthropic is the API of Anthropic (platform.claude.com, "Rate limits", 2026). Policies are named
// "requests", "tokens", "input-tokens" and "output-tokens", and "unified" for the windows of
// subscriptions. The resets are when the bucket will be full again. If paid overage admits a call
// although a window of the subscription is spent, it does not hold the bucket. 529 is an overload,
// not this account's limit. Package outbound/estimate has the limits to configure.
var Anthropic *Profile = anthropic

var anthropic = add(Profile{
	Name: "anthropic", also: "claude",
	Fields: headers(Field{}, "custom Anthropic-Ratelimit-Unified-Status"),
	Bodies: []Body{{Status: 429}, {Status: 529}, {Status: 503}, {Status: 500}}, Members: waits,
	Rules: append([]Rule{{In: "/error/type", Words: "overloaded_error", Reason: Overload}}, modelRules...),
	Judge: func(r *Response, s *Signal) {
		if r.Get("Anthropic-Ratelimit-Unified-Status") != "rejected" {
			return
		}
		// "allowed" or "allowed_warning"; Anthropic's clients read it so, and its pages omit these
		// headers: github.com/juspay/neurolink/pull/1268.
		if !s.Throttled && strings.HasPrefix(r.Get("Anthropic-Ratelimit-Unified-Overage-Status"), "allowed") {
			return
		}
		if p := s.policy("unified"); p != nil {
			p.Remaining = 0
		} else {
			s.Add(Policy{Name: "unified", Limit: None, Reset: None, used: None})
		}
	},
})
