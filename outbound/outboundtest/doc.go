// Package outboundtest helps to test programs that pace their calls to other
// people's APIs.
//
// [API] is the other side: a strict API that refuses whatever breaks its limits, with
// 429 if it is not told otherwise, and reports what it saw. Give it the limits that the real API publishes,
// call it through your own paced client, and expect no refusals:
//
//	func TestPacedClientIsNeverRefused(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(10, time.Second)}}
//			client := newPacedClient(api) // yours, with api as its base transport
//			for range 1000 {
//				res, err := client.Get("http://api.example.com/items")
//				if err != nil {
//					t.Fatal(err)
//				}
//				res.Body.Close()
//			}
//			if r := api.Report(); r.Refused > 0 {
//				t.Errorf("%d of %d calls refused", r.Refused, r.Arrivals)
//			}
//		})
//	}
//
// Inside a testing/synctest bubble the 1000 calls take no time, although minutes
// pass on the fake clock. There an API is used as an http.RoundTripper, since a
// bubble cannot wait for a network; outside, it is also an http.Handler for an
// httptest.Server.
//
// An API can speak as a vendor does, with that vendor's limits, headers, statuses and
// bodies: [GitHub], [ShopifyREST], [ShopifyGraphQL], [Discord], [OpenAI], [Anthropic],
// [Stripe], and [RateLimitFields] for the fields of the IETF draft. A client that reads
// headers can so be tested offline, also against limits that change while it runs
// ([API.SetRules]), answers that come late and overtake each other (Latency and Jitter),
// and a clock that is wrong (Skew). [Vendor] is for APIs that are not among them. What
// the vendors publish is taken from their documentation as of 2026, what they do not
// publish is said to be so; the texts of errors are their own only where clients look
// for them.
//
// [History] is the judge of a limiter on its own: add each departure, then let
// [History.Check] find out whether in every interval of length W at most capacity +
// leakRate*W units left, and where not. [History.Worst] answers the other
// question, how many there were in the fullest window of a given length, and
// [History.Use] tells whether a limiter that keeps the law is also fast. An API
// keeps such histories of its arrivals and of the calls it admitted.
//
// Where a number means nothing (NaN, an infinity, a negative limit) this package
// panics with a text that names it: a test that went on would pass and prove
// nothing.
package outboundtest
