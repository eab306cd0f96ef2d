// Package outboundtest helps to test programs that rate-limit their calls to third-party
// APIs, and stores that keep buckets.
//
// [API] is a strict API. It counts the calls that it gets, and refuses each call over its limits,
// with 429 or as a vendor does. Give it the limits that the real API publishes, call it through
// your own client, and expect no refusals:
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
// An API can reply as a vendor does, with that vendor's limits, headers, statuses and bodies:
// [GitHub], [ShopifyREST], [ShopifyGraphQL], [Discord], [OpenAI], [Anthropic] and [Stripe].
// [RateLimitFields] has the fields of the IETF draft, and [Vendor] is for other APIs. So you can
// test offline a client that reads headers. The limits can change ([API.SetRules]), replies can be
// late and overtake each other (Latency and Jitter), and the clock can be wrong (Skew). The numbers
// are those of the vendors' documentation of 2026. A comment marks those that a vendor does not
// publish. The texts of errors are the vendors' own only where clients look for them.
//
// [History] checks a limiter without an API. Add each departure. [History.Check] then returns an
// error if more than capacity + leakRate*W units left in any interval of length W.
// [History.CheckWindow] checks for at most n units in any window of one length, and
// [History.CheckCalendar] for at most n in each hour, day, week or month. [History.Worst] finds the
// fullest window of a length, and [History.Use] the share of the limit that was used. An API keeps
// such histories of its arrivals and of the calls that it admitted.
//
// [Calls] checks a limit on calls in flight. Add each call of each process. [Calls.Check] then
// returns an error if more than n were in flight at a time.
//
// [Load] is a number of callers that make a list of calls as fast as one or more limiters admit
// them. It measures how long that takes, and how long each call waits.
//
// [TestStore] is the conformance test of a [store.Store]: each case quotes the sentence of the
// contract that it checks. [StoreHooks] let it break and reopen the store.
//
// This package panics at an invalid number, such as NaN, an infinity or a negative limit, with a
// text that names the number. A test that went on would pass and prove nothing.
package outboundtest
