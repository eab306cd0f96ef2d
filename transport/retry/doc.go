// Package retry tries requests again as the API and its limiter ask for. It is
// [github.com/hashicorp/go-retryablehttp] around a [transport.Transport], so that the limiter
// admits every attempt, and every attempt pays, like any other request:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	client := retry.NewClient(&transport.Transport{
//		Limiter: queue.New(bucket, queue.Config{MaxWait: time.Minute}),
//	})
//	resp, err := client.Get("https://weather.example.com/today")
//
// [RoundTripper] makes an http.Client of it, for programs and SDKs that want one.
//
// # What is tried again, and when
//
//   - A [*outbound.ThrottledError] of the limiter: nothing went out. The client tries again
//     after its RetryAfter. If that is 0, because nobody knows when a place among the calls
//     at once ([outbound.InFlight]) will be free, it tries after 10 ms, then 20 ms and so on, up
//     to 1 s.
//   - What the transport's Profile reads as a refusal because of limits: 429, 503 and 529 with
//     a Retry-After that is not over, and the refusals that only this vendor has. The
//     transport has told the limiter, and the next attempt goes there at once: a queue gives
//     it its place in line, and a bucket says how long it holds. But the attempt never goes
//     out earlier than the Retry-After says. A limiter may admit it earlier, because it hears
//     of no refusals, as [outbound.Unlimited], or has heard that this one has other reasons;
//     then it gets the units back. A refusal that is not the limiter's, as by a lock, delays
//     the request before it goes to the limiter. If the API has not said how long, and the
//     limiter does not hold the request for a second (or for the transport's MaxHold, if that
//     is less) or holds nobody, the client waits 1 s, doubled with each such refusal, up to
//     30 s.
//   - Failures: errors of the network, an [*outbound.StoreError], and statuses from 500 on.
//     The client tries again after its RetryWaitMin, 1 s, doubled with each failure, up to its
//     RetryWaitMax, 30 s. Each failure stays charged, also one that failed to dial.
//
// The client never shortens a time that the API or the limiter has asked for. It adds up to a tenth
// of it, at most 1 s, and up to half to a pause of its own, so that not all clients come back
// together. To a queue's time it adds nothing, because a queue lets one after the other go.
//
// The client reads a response that is not the last one, up to 64 KiB, and closes it, so that its
// connection can be used again.
//
// # Bounds
//
// [Config] has three: 10 refusals by the API, 4 failures, and MaxWait for the time in which a
// request waits for room, a queue's included. If MaxWait is zero, only the request's context bounds
// the wait, and without a deadline a day. Refusals by the limiter have no number, because they cost
// nothing. 64 workers on a bare bucket compete at random: the unluckiest is refused 63 times.
// Behind a queue every worker stands in line.
//
// The client does not begin a pause that would end after a bound: the error comes at once.
//
// # What is never tried again
//
//   - What can never go: [outbound.ErrTooLarge], [outbound.ErrInvalidCost],
//     [outbound.ErrInvalidLimit], [outbound.ErrNil] and other errors of a limiter; a queue that
//     was closed.
//   - A request whose context has ended.
//   - What would fail in the same way: a certificate that is not trusted, an unknown scheme,
//     too many redirects, 501 and 505, and all statuses below 500 that are no refusals. A 429
//     out of a cache. A quota that is used up, if the API does not say until when, or the
//     account's credit.
//   - A request whose body cannot be read again, because it has no GetBody.
//   - A POST, PATCH or other method that is not idempotent, once it may have reached the API,
//     so that the API does nothing twice: after an error other than of dialing, after 500 and
//     above, and after a redirect. With an Idempotency-Key, or with [Config.Safe], the client
//     tries these again as well. After a limiter's refusal, one by the API because of its
//     limits, such as 429, and an error of dialing, it always may: the API has done nothing.
//
// These come back as they are: the error in an [*Error], or the response.
//
// # Errors
//
// What comes back when the client gives a request up depends on the cause alone:
//
//	the cause                            a client         a RoundTripper
//	the limiter refuses                  ThrottledError   ThrottledError
//	the API has refused, and then        ThrottledError   the API's response; or a 429 that
//	itself or the limiter does again                      TooManyRequests makes, if that was the limiter
//	the API fails: a status from 500 on  no Err           the response
//	no answer, or a store that fails     the cause        the cause
//	the context has ended                its error        its error
//	all that is never tried again        as it is         as it is
//
// Every error is an [*Error], with the number of attempts, around the one in the table. As they are
// come only the context's own error, if the context ends during a pause, and errors of a program's
// own hooks and of a retryablehttp.ReaderFunc. An [*outbound.ThrottledError] has the time to come
// back; a job system can put its job back until then. Its Key is that of the limiter's bucket, or
// its label, whoever has refused; for a refusal by the API through a limiter without a bucket it is
// the host. The response of an error has been closed. A client whose ErrorHandler is
// retryablehttp.PassthroughErrorHandler returns responses as a [RoundTripper] does. No text has the
// user, password, query or fragment of a URL in it. An http.Client around a [RoundTripper] adds the
// URL, with its query, as to every error.
//
// # Below an SDK
//
// Many SDKs take an http.Client, and make their own errors of the API's answers. Above a
// [RoundTripper] they still do, because it hands the last response on as it came. If the request
// has reached one of the bounds, the RoundTripper adds X-Should-Retry: false. Attempts of an SDK
// that tries again by itself do not multiply where the package recognizes the SDK:
//
//   - The SDKs of OpenAI, Anthropic and others that Stainless makes heed that field, and stop.
//   - Those of AWS say in Amz-Sdk-Request how often they send a request. If that is more than
//     once, or without a bound, the package leaves refusals and failures that have a response
//     to them.
//   - Stripe's, and those that are made with go-retryablehttp, such as GitLab's, send the same
//     *http.Request again. A [RoundTripper] remembers for a while which requests it has given
//     up, and answers with an [*Error], which the SDK returns in place of its own.
//
// An SDK that makes a new request each time, and says nothing of it, looks like a program that asks
// once. Errors without a response, as of dialing, stop only AWS's SDKs and those that send the same
// request. So turn an SDK's own retries off where it has them, or let it do all of them: with
// [Config]{MaxThrottled: -1, MaxFailures: -1} a client waits for the limiter, and tries nothing
// else again. SDKS.md, beside this file, says how, and what was tried, for each of eleven SDKs.
//
// A refusal by the limiter alone is an error, in which [errors.As] finds the
// [*outbound.ThrottledError]. With [transport.TooManyRequests] as OnRefusal an SDK reads it as a
// 429 of the API.
//
// # Redirects
//
// Each hop pays. The client itself follows redirects as an http.Client does, and an attempt is the
// whole chain. If the limiter refuses a later hop, that hop waits for it; if the API refuses it,
// the chain begins anew. With a [RoundTripper] each hop is a request of its own.
//
// # With retryablehttp's own fields
//
// RetryWaitMin, RetryWaitMax, HTTPClient.Timeout (of an attempt, its time in a queue included),
// Logger, ResponseLogHook and PrepareRetry work as they do there. CheckRetry, Backoff and
// RequestLogHook belong together: see [Config.NewClient]. The client's StandardClient works as
// well, but reads all of a body into memory, does not close it, and follows redirects itself;
// [RoundTripper] does not.
//
// # The files
//
//	config.go        Config, and a client of retryablehttp with the hooks below
//	roundtripper.go  RoundTripper
//	request.go       what a request carries through all its attempts
//	check.go         CheckRetry: what an attempt has come to, and when the next one may go
//	pause.go         Backoff and PrepareRetry: how long to wait
//	redirects.go     the hops of an attempt, and departGate, between the transport and its Base
//	unchecked.go     the same with somebody else's CheckRetry
//	body.go          ErrorHandler; bodies that nobody wants any more
//	givenup.go       requests that an SDK sends again after they were given up
//	bound.go         a limiter in which a request waits no longer than MaxWait
//	sdk.go           SDKs that say what they do
//	signal.go        what a response says, for the request
//	error.go         Error
package retry
