// Package retry tries requests again as the API and its limiter ask for. It is
// [github.com/hashicorp/go-retryablehttp] around a [transport.Transport], so
// that every attempt is admitted and paid for like any other request:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	client := retry.NewClient(&transport.Transport{
//		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
//	})
//	resp, err := client.Get("https://weather.example.com/today")
//
// [RoundTripper] makes an http.Client of it, for programs and SDKs that want
// one.
//
// # What is tried again, and when
//
//   - A [*outbound.ThrottledError] of the limiter: nothing went out. After its
//     RetryAfter. If that is 0, because a place among the calls at once
//     ([outbound.AtOnce]) is free nobody knows when, after 10 ms, then 20 ms and
//     so on, up to 1 s.
//   - What the transport's Profile reads as a refusal because of limits: 429, 503
//     and 529 with a Retry-After that is not over, and what its vendor has besides.
//     The transport has told the limiter, and the next attempt goes there at once: a
//     queue gives it its place in line, and a bucket says how long it holds. But it
//     never goes out earlier than the Retry-After says. A limiter that admits it
//     earlier, because it hears of no refusals, as [outbound.Unlimited], or was
//     told that this one has other reasons, gets the units back. A refusal that is
//     not the limiter's, as by a lock, delays the request before it goes there. If
//     the API has not said how long, and the limiter does not hold it for a second
//     (or for the transport's MaxHold, if that is less) or holds nobody, it is 1 s,
//     doubled with each such refusal, up to 30 s.
//   - Errors of the network, an [*outbound.StoreError], and statuses from 500
//     on: failures. After the client's RetryWaitMin, 1 s, doubled with each
//     failure, up to its RetryWaitMax, 30 s. Each stays charged, also one that
//     failed to dial.
//
// A time that was asked for is never shortened. Up to a tenth is added to it, at
// most 1 s, and up to half to a pause that nobody has asked for, so that not
// all come back together. Only a queue adds nothing, because it lets one after
// the other go.
//
// A response that is not the last one is read, up to 64 KiB, and closed, so that
// its connection can be used again.
//
// # Bounds
//
// [Config] has three: 10 refusals by the API, 4 failures, and 30 s in which a
// request waits for room, or as long as its context has a deadline. Refusals by
// the limiter have no number, because they cost nothing: of 64 workers at a bare
// bucket the last is refused 63 times, by no fault of its own. There luck decides who
// goes, and under load somebody may have none for 30 s; behind a queue everybody is in
// line.
//
// What would take longer than it may is not begun: the error comes at once.
//
// # What is never tried again
//
//   - What can never go: [outbound.ErrTooLarge], [outbound.ErrInvalidCost],
//     [outbound.ErrInvalidLimit], [outbound.ErrNil] and other errors of a limiter; a
//     queue that was closed.
//   - What nobody waits for any more: a request whose context has ended.
//   - What would fail in the same way: a certificate that is not trusted, a
//     scheme that nobody knows, too many redirects, 501 and 505, and all
//     statuses below 500 that are no refusals. A 429 out of a cache. A quota that
//     is used up, if the API does not say until when, or the account's credit.
//   - A request whose body cannot be had again, because it has no GetBody.
//   - A POST, PATCH or other method that is not idempotent, once it may have
//     reached the API, so that nothing is done twice: after an error other than
//     of dialing, after 500 and above, and after a redirect. It takes an
//     Idempotency-Key, or [Config.Safe], to try these again. A limiter's
//     refusal, one by the API because of its limits, such as 429, and an error of
//     dialing are no obstacle: nothing was done.
//
// These come back as they are: the error in an [*Error], or the response.
//
// # Errors
//
// Every error is an [*Error], with the number of attempts, but for the
// context's own, bare, if it ends during a pause. A request that ends
// throttled, with whichever status, has an [*outbound.ThrottledError] in it, with
// the time to come back; a job system can put its job back until then. The
// response of an error has been closed. A [RoundTripper] returns the last response
// instead of an error for it, and so does a client whose ErrorHandler is
// retryablehttp.PassthroughErrorHandler. No text has the user, password, query
// or fragment of a URL in it. An http.Client around a [RoundTripper] adds the URL,
// with its query, as to every error.
//
// # Below an SDK
//
// Many SDKs take an http.Client, and make their own errors of the API's answers. Above a
// [RoundTripper] they still do, because it hands the last response on as it came. Where one
// of the bounds was reached it adds that X-Should-Retry is false.
// Attempts of an SDK that tries again by itself do not multiply, as far as it can be recognised:
//
//   - The SDKs of OpenAI, Anthropic and others that Stainless makes heed that field, and stop.
//   - Those of AWS say in Amz-Sdk-Request how often they send a request. If that is more
//     than once, or without a bound, refusals and failures that have a response are left to them.
//   - Stripe's, and those that are made with go-retryablehttp, such as GitLab's, send the same
//     *http.Request again. A [RoundTripper] remembers for a while what it has given up, and
//     answers with an [*Error], which the SDK returns in place of its own.
//
// An SDK that makes a new request each time, and says nothing of it, cannot be told apart from
// a program that asks once. Errors without a response, as of dialing, stop only AWS's SDKs and
// those that send the same request. So turn an SDK's own retries off where it has
// them, or have it do all of them: with [Config]{MaxThrottled: -1, MaxFailures: -1} a
// client waits for the limiter, and tries nothing else again. SDKS.md, beside this file, says
// how, and what was tried, for each of eleven SDKs.
//
// A limiter's refusal is an error, in which [errors.As] finds the [*outbound.ThrottledError].
// With [transport.TooManyRequests] as OnRefusal an SDK reads it as a 429 of the API.
//
// # Redirects
//
// Each hop pays. The client itself follows redirects as an http.Client does,
// and an attempt is the whole chain: a later hop that the limiter refuses waits
// for it, but if the API refuses it, the chain begins anew. With a [RoundTripper]
// each hop is a request of its own.
//
// # With retryablehttp's own fields
//
// RetryWaitMin, RetryWaitMax, HTTPClient.Timeout (of an attempt, its time in a
// queue included), Logger, ResponseLogHook and PrepareRetry work as they do
// there. CheckRetry, Backoff and RequestLogHook belong together: see
// [Config.NewClient]. The client's StandardClient works as well, but reads all of
// a body into memory, does not close it, and follows redirects itself;
// [RoundTripper] does not.
package retry
