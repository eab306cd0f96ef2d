package profile

import (
	"strings"
	"time"
)

// Shopify is the REST Admin API of Shopify (shopify.dev, "REST Admin API rate limits", 2026):
// a leaky bucket. It reports the level and the size, not the leak, and sends a Retry-After with
// decimals.
var Shopify *Profile = add(Profile{Name: "shopify-rest", also: "shopify"})

// ShopifyGraphQL is the GraphQL Admin API of Shopify (shopify.dev, "GraphQL Admin API rate
// limits", 2026): a leaky bucket of points, reported in the body. A refusal has the status 200,
// and the query waits until the points that it asks for are there.
var ShopifyGraphQL *Profile = shopifyGraphQL

var shopifyGraphQL = add(Profile{
	Name: "shopify-graphql", Bodies: []Body{{Status: 200}, {Status: 429}},
	Members: headers(Field{Policy: "graphql-cost", Unit: "points", Kind: Bucket}, `
		limit /extensions/cost/throttleStatus/maximumAvailable
		remaining /extensions/cost/throttleStatus/currentlyAvailable`),
	Rules: []Rule{{In: "/errors/extensions/code /errors/message", Words: "throttled"}},
	Judge: func(r *Response, s *Signal) {
		asked, _ := number(r.JSON("extensions/cost/requestedQueryCost"))
		rate, _ := number(r.JSON("extensions/cost/throttleStatus/restoreRate"))
		available, ok := new(Policy).remains(r.JSON("extensions/cost/throttleStatus/currentlyAvailable"))
		s.ask(duration((asked-available)/rate, time.Second), s.Throttled && ok && rate > 0 && asked > available)
	},
})

// Stripe is the API of Stripe (docs.stripe.com, "Rate limits", 2026), which never says how
// long to wait. Detail is why, such as "endpoint-rate". A 429 without that is about an object
// that another call has locked.
var Stripe *Profile = stripe

var stripe = add(Profile{
	Name: "stripe", Fields: []Field{{Header: "Stripe-Rate-Limited-Reason", Is: IsDetail}},
	Bodies: []Body{{Status: 429}},
	Rules: []Rule{
		{Status: 429, In: "Stripe-Rate-Limited-Reason", Words: "*-concurrency", Reason: Concurrency},
		{Status: 429, In: "Stripe-Rate-Limited-Reason", Words: "resource-specific", Reason: Lock}, // one object gets too many calls
		{Status: 429, In: "Stripe-Rate-Limited-Reason", Words: "*"},
		{Status: 429, In: "/error/code", Words: "lock_timeout", Reason: Lock},
	},
	Judge: func(_ *Response, s *Signal) {
		if scope, _, ok := strings.Cut(s.Detail, "-"); ok {
			s.Scope = scope
		}
	},
})

// Tiendanube is the API of Tiendanube and Nuvemshop
// (dev.nuvemshop.com.br/en/docs/erp-guide/api-usage, 2026): a leaky bucket whose reset is in
// milliseconds from now, and when it will be empty. A refusal waits until one request fits, and a
// second at least.
var Tiendanube *Profile = add(Profile{Name: "tiendanube", also: "nuvemshop", Kind: Bucket, In: time.Millisecond})

// Prisjakt is the API of Prisjakt (developer.prisjakt.nu, "Rate limits", 2026), whose reset
// is in milliseconds from now.
var Prisjakt *Profile = add(Profile{Name: "prisjakt", In: time.Millisecond})

// The API of SkuVault, whose reset is in milliseconds from now.
var _ = add(Profile{Name: "skuvault", In: time.Millisecond})

// HubSpot is the API of HubSpot (developers.hubspot.com, "API usage guidelines", 2026): the limits
// of ten seconds and a day, without resets. A refusal by the limit of ten seconds waits for as long
// as its window. The policyName of the body, or else its message, says which limit it was. 423 is a
// Lock of an object with too many concurrent writes, and ends after 2 s ("Error handling").
var HubSpot *Profile = hubSpot

var hubSpot = add(Profile{
	Name: "hubspot", Bodies: []Body{{Status: 429}},
	Fields: headers(Field{Policy: "interval", In: time.Millisecond}, `limit X-Hubspot-Ratelimit-Max
		remaining X-Hubspot-Ratelimit-Remaining window X-Hubspot-Ratelimit-Interval-Milliseconds`),
	Rules: []Rule{
		{Status: 423, Reason: Lock, Wait: 2 * time.Second},
		{Status: 477, Reason: Overload}, // HubSpot is moving the account
		// "You have reached your daily limit."
		{Status: 429, In: "/policyName /message", Words: "*daily*", Reason: Quota, Scope: "daily"},
		{Status: 429, In: "/policyName /message", Words: "*ten_secondly*", Scope: "interval", Wait: 10 * time.Second},
		{Status: 429, In: "/policyName /message", Words: "*secondly*", Scope: "interval", Wait: time.Second},
	},
	Members: headers(Field{}, "detail /policyName"),
	Judge: func(r *Response, s *Signal) {
		p, spent := s.spent()
		switch interval := s.policy("interval"); {
		case r.Status != 429 || s.Reason == Quota:
		case s.Scope == "" && s.Detail == "" && spent && p.Name == "daily":
			s.Reason, s.Scope = Quota, "daily"
		case s.Scope != "" || s.Detail != "" || spent:
			if s.Scope = "interval"; interval != nil {
				s.Wait = max(s.Wait, interval.Window)
			}
		}
	},
})

// Salesforce is the REST API of Salesforce (developer.salesforce.com, "API request limits and
// allocations", 2026): the use of a rolling day, of the organisation and of one app. A 403
// with REQUEST_LIMIT_EXCEEDED is a refusal, and does not say when it will be over.
var Salesforce *Profile = salesforce

var salesforce = add(Profile{
	Name: "salesforce", Fields: headers(Field{Window: day}, "all Sforce-Limit-Info"),
	Bodies: []Body{{Status: 403}, {Status: 503}},
	Types:  []string{"text/xml", "application/xml"},
	Rules: []Rule{
		{In: "/message <message>", Words: "*concurrent* limit exceeded*", Reason: Concurrency, Detail: "REQUEST_LIMIT_EXCEEDED"},
		{In: "/errorCode <errorCode>", Words: "request_limit_exceeded", Reason: Quota},
	},
})

// Pipedrive is the API of Pipedrive (pipedrive.readme.io, "Rate limiting", 2026): bursts of
// two seconds, with resets from now, and daily budgets of requests and tokens.
var Pipedrive *Profile = pipedrive

var pipedrive = add(Profile{
	Name: "pipedrive", Fields: append(headers(Field{Policy: "daily-requests", Window: day}, "remaining X-Daily-Requests-Left"),
		headers(Field{Policy: "daily-tokens", Window: day},
			"limit X-Daily-Ratelimit-Token-Limit remaining X-Daily-Ratelimit-Token-Remaining")...),
})

// Zendesk is the API of Zendesk (developer.zendesk.com, "Rate limits" and "List Tickets
// limits", 2026), whose limit stands in X-Rate-Limit. Some endpoints have limits of their
// own, reported in Zendesk-RateLimit and a name: policies by that name, in the unit "endpoint". A
// refusal by one of them alone is a Lock with the Scope "endpoint", whose Detail is the name.
// A transport for such an endpoint alone has the name among its Units, and an OnSignal that
// turns the Lock into Rate.
var Zendesk *Profile = zendesk

var zendesk = add(Profile{
	Name: "zendesk", Fields: headers(Field{}, "limit X-Rate-Limit remaining X-Rate-Limit-Remaining reset X-Rate-Limit-Reset"),
})

// Mailchimp is the Marketing API of Mailchimp (mailchimp.com/developer, "Throttling", 2026), which
// allows ten connections at a time and does not report that.
var Mailchimp *Profile = add(Profile{Name: "mailchimp", Reason: Concurrency})

// Xero is the Accounting API of Xero (developer.xero.com, "API limits", 2026): what remains
// of a minute and of a day, and of a minute for the whole app. Scope is which of them, or
// "concurrent", has refused.
var Xero *Profile = xero

var xero = add(Profile{
	Name: "xero", Fields: headers(Field{}, "scope X-Rate-Limit-Problem detail X-Rate-Limit-Problem"),
	Rules: []Rule{
		{Status: 429, In: "X-Rate-Limit-Problem", Words: "*concurrent*", Reason: Concurrency},
		{Status: 429, In: "X-Rate-Limit-Problem", Words: "*day*", Reason: Quota},
	},
})

// QuickBooks is the Accounting API of QuickBooks Online (developer.intuit.com, "Limits and
// throttles", 2026), which asks for a minute and reports nothing.
var QuickBooks *Profile = add(Profile{Name: "quickbooks", also: "quickbooksonline", Penalty: time.Minute})
