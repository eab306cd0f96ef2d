// Package outboundtest helps to test programs that rate-limit their calls to third-party
// APIs, and stores that keep buckets.
//
// [API] is the other side: a strict API that refuses each call that breaks its limits,
// with 429 unless it speaks as a vendor, and counts the calls that it sees. Give it the
// limits that the real API publishes, call it through your own client, and expect no
// refusals:
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
// [Stripe], and [RateLimitFields] for the fields of the IETF draft. So you can test a
// client that reads headers offline, also against limits that change while it runs
// ([API.SetRules]), answers that come late and overtake each other (Latency and Jitter),
// and a clock that is wrong (Skew). [Vendor] is for other APIs. The numbers are those of
// the vendors' documentation as of 2026; a comment says so where a vendor publishes
// none. The texts of errors are the vendors' own only where clients look for them.
//
// [History] judges a limiter without an API: add each departure, then [History.Check] finds out whether
// in every interval of length W at most capacity + leakRate*W units left, and where more did.
// [History.CheckWindow] does so for at most n units in any window of one length, and
// [History.CheckCalendar] for those of an hour, a day or a month. [History.Worst] finds the fullest
// window of a given length, and [History.Use] tells whether a limiter that keeps the law is also fast.
// An API keeps such histories of its arrivals and of the calls that it admitted.
//
// [Load] is the other end: callers that make a list of calls as fast as a limiter, or a fleet
// of them, lets them. It tells how long that takes, and how long each call waits.
//
// [TestStore] is the exam of a [store.Store]: each case quotes the sentence of the contract
// that it checks. [StoreHooks] let it break and reopen the store.
//
// This package panics where a number means nothing, such as NaN, an infinity or a
// negative limit, with a text that names the number: a test that went on would pass and
// prove nothing.
package outboundtest
