package profile

import (
	"bytes"
	"strings"
	"time"
)

// AWS are the APIs of Amazon Web Services (aws-sdk-go-v2, aws/retry, 2026). They refuse with
// 400, 403, 429 or 503, and only the error's code says why, in a header, JSON or XML.
var AWS *Profile = aws

var aws = add(Profile{
	Name: "aws", also: "amazonwebservices awsapis", Types: []string{"text/xml", "application/xml"},
	Bodies: []Body{{Status: 400}, {Status: 403}, {Status: 429}, {Status: 503}, {Status: 509}},
	Rules: []Rule{
		{Status: 429, In: "/Reason", Words: "*concurrent*", Reason: Concurrency}, // Lambda
		// Bedrock: github.com/openclaw/openclaw/issues/40403
		{Status: 429, In: "/message", Words: "too many tokens per day", Reason: Quota, Detail: "per-day"},
		{In: awsCodes, Words: "provisionedthroughputexceededexception|throttling|throttlingexception|throttledexception|requestthrottledexception|toomanyrequestsexception|ec2throttledexception|requestlimitexceeded|bandwidthlimitexceeded|requestthrottled|slowdown", Reason: Rate},
		{In: awsCodes, Words: "limitexceededexception", Reason: Quota},
		{In: awsCodes, Words: "transactioninprogressexception|priorrequestnotcomplete", Reason: Lock},
	},
})

// awsCodes are the headers and paths of an error, such as com.amazonaws.kms#ThrottlingException.
const awsCodes = "X-Amzn-Errortype /__type /code /Code /Error/Code <Code>"

// inner returns the text between two marks.
func inner(b []byte, from, to string) string {
	_, rest, ok := bytes.Cut(b, []byte(from))
	found, _, closed := bytes.Cut(rest, []byte(to))
	if !ok || !closed || len(found) > maxValue {
		return ""
	}
	return string(found)
}

// AzureARM is Azure Resource Manager and the resource providers behind it
// (learn.microsoft.com, "Understand how Azure Resource Manager throttles requests", 2026).
// They report what remains, without a limit or a reset, and the compute provider names the
// window at the end of the policy: Get3Min. The providers of costs and consumption have waits
// of their own, and no Retry-After. A 429 because another operation is under way is a Lock.
var AzureARM *Profile = azureARM

var azureARM = add(Profile{
	Name: "azure-arm", also: "arm azure azurecompute azureresourcemanager",
	Kind: Bucket, Fields: headers(Field{}, "custom X-Ms-Ratelimit-Remaining-Resource"),
	Bodies:  []Body{{Status: 429}},
	Members: headers(Field{}, "detail /code detail /error/code detail /error/details/code detail /error/innererror/code"),
	Rules: []Rule{{Status: 429, In: "/code /error/code /error/details/code /error/innererror/code",
		Words: "*anotheroperation*", Reason: Lock}},
	Judge: func(r *Response, s *Signal) {
		for line := range r.Lines("X-Ms-Ratelimit-Remaining-Resource") {
			for one := range items(line, ",") {
				name, remaining, _ := strings.Cut(one, ";")
				p := NewPolicy(name)
				p.remains(strings.TrimLeft(remaining, " \t"))
				digits := strings.TrimRight(name, "SecMinHourDay") // the window: 3Min, 30Min
				p.Window = windowOf(name[len(strings.TrimRight(digits, "0123456789")):])
				s.Add(p)
			}
		}
	},
})

// Graph is Microsoft Graph, and SharePoint (learn.microsoft.com, "Microsoft Graph throttling
// guidance", 2026): Retry-After, and the IETF's headers where a workload sends them. Some
// refusals name their scope and reason.
var Graph *Profile = graph

var graph = add(Profile{
	Name: "graph", also: "microsoftgraph msgraph sharepoint",
	Fields: headers(Field{}, "scope X-Ms-Throttle-Scope detail X-Ms-Throttle-Information"),
})

// Google are the APIs of Google, Gemini among them (cloud.google.com, google.rpc error
// details, and the guides to errors of Calendar and Drive, 2026). They send no headers. The
// reason in the body decides what a 403 or 429 is, and RetryInfo says how long to wait. That
// is about a minute even where a day's quota is used up, which is a Quota with the Detail
// "daily-quota".
var Google *Profile = google

var google = add(Profile{
	Name: "google", also: "gemini googleapi googleapis googlecloud googlegemini",
	Bodies: []Body{{Status: 403}, {Status: 429}, {Status: 503}},
	Rules:  modelRules, Members: waits,
})

// googleRules read what Google names as reasons; there may be several errors or violations. A quota
// is of the day as PerDay or 1/d/{project}.
var googleRules = []Rule{
	{In: googleReasons + " /error/details/violations/quotaId /error/details/metadata/quota_limit /error/details/metadata/quota_unit",
		Words: "*dailylimit*|*daily_limit*|*perday*|*/d/*", Reason: Quota, Detail: "daily-quota"},
	{In: googleReasons, Words: "*concurrent*", Reason: Concurrency},
	{In: googleReasons, Words: "*ratelimit*|*rate_limit*", Reason: Rate},
	{In: "/error/status", Words: "resource_exhausted", Reason: Rate},
	{In: googleReasons, Words: "*quotaexceeded*|*quota_exceeded*", Reason: Quota},
}

const googleReasons = "/error/errors/reason /error/details/reason"

// The API of Hetzner (docs.hetzner.cloud, "Rate Limiting", 2026), of Twitch (dev.twitch.tv, "Twitch
// API Concepts") and of Replicate (replicate.com/docs, "Rate limits"): buckets, whose reset is when
// all will be there.
var _ = add(Profile{Name: "hetzner", also: "hcloud hetznercloud replicate twitch", Kind: Bucket})

// Okta is the API of Okta (developer.okta.com, "Rate limits", 2026). A limit of 0 means too
// many calls in flight; its reset is a suggestion only.
var Okta *Profile = okta

var okta = add(Profile{
	Name: "okta",
	Judge: func(r *Response, s *Signal) {
		if p := s.Binding(); r.Status == 429 && p != nil && p.Limit == 0 {
			s.Reason = Concurrency
		}
	},
})

// RapidAPI is the gateway of RapidAPI (docs.rapidapi.com/docs/response-headers, 2026): a policy for
// each object that is billed, with resets in seconds from now, up to a month away. Beyond such a
// quota calls cost extra, so a success that uses it up does not hold the bucket. X-RateLimit-Limit,
// -Remaining and -Reset report the limit on the pace. If that refuses, its reset counts, and not
// that of a quota.
var RapidAPI *Profile = rapidAPI

var rapidAPI = add(Profile{
	Name: "rapidapi",
	Judge: func(r *Response, s *Signal) {
		for i := range s.Policies() {
			switch p := &s.Policies()[i]; {
			case p.Name != "":
				p.Kind = Window // a success has no Judge
			case r.Status == 429 && p.exhausted():
				s.ask(p.Wait(), p.Wait() > 0)
			}
		}
	},
})

// OracleAccessGovernance is the API of Oracle Access Governance
// (docs.oracle.com/en/cloud/paas/access-governance/pmapi/rate-limits.html, 2026): the limits
// of a minute, "default" on reading and "write" on the rest, with what remains, and on a
// refusal the milliseconds until the reset. Oracle's API gateway is another product, of which
// no such header is known: [Generic] reads it.
var OracleAccessGovernance *Profile = oracleAccessGovernance

var oracleAccessGovernance = add(Profile{
	Name: "oracle-access-governance", also: "oracle oracleag",
	Fields: []Field{
		{Header: "Requestlimit-*-Remaining", Is: IsRemaining, Window: time.Minute},
		{Header: "Requestlimit-*-Retryafter", Is: IsRetryAfter, In: time.Millisecond},
	},
})

// Twilio is the API of Twilio (twilio.com/docs, error 20429, 2026). Its limit is on calls in
// flight, and it does not report how many.
var Twilio *Profile = twilio

var twilio = add(Profile{
	Name: "twilio", Bodies: []Body{{Status: 429}},
	Rules: []Rule{
		{In: "/code", Words: "20429", Reason: Concurrency},
		{In: "/code", Words: "*", Reason: Rate},
		{In: "Twilio-Concurrent-Requests", Words: "*", Reason: Concurrency},
	},
})
