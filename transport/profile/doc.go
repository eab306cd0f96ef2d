// Package profile reads the rate limits of an API from its responses:
//
//	signal := profile.GitHub.Read(resp, time.Now())
//	if signal.Throttled {
//		fmt.Println(signal.Reason, signal.Wait)
//	}
//
// A [Signal] reports whether the API refused the call, why, how long to hold further calls, and the
// limits that the response names, each as a [Policy]. A Signal may slow a program down. It never
// speeds a program up. The package keeps no state between responses. [ByName] finds a profile by
// the name of an API. To write a profile, see the example and [Profile].
//
// # What every profile reads
//
//   - Retry-After (RFC 9110 §10.2.3) in seconds, with decimals, as a date of HTTP or ISO 8601, and
//     as a time since 1970 if that is within 40 days of the API's clock; X-RateLimit-Retry-After
//     likewise; Retry-After-Ms, X-Ms-Retry-After-Ms and X-Amz-Retry-After in milliseconds;
//   - RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-00 to -11, by the
//     rules of RFC 9651: one wrong character voids a field;
//   - X-RateLimit-Limit, -Remaining and -Reset, and other names with a word for a limit.
//
// A name has an owner, "ratelimit" or "rate-limit", and a meaning next to the name of a policy:
// X-Vendor-RateLimit-Tokens-Remaining, x-ratelimit-limit-requests-day. Windows and units may be in
// it. Meanings are the limit, the rest, the use, the reset, and a window: Period, Interval, Window.
// An owner without "ratelimit" needs Remaining and Reset. Names with "beta" count nothing. Values
// may be 150/15m, JSON, or "total=100; remaining=99".
//
// A reset is a number of seconds, a time since 1970, a duration as Go writes it, or a date of HTTP,
// ISO 8601 or JavaScript. A number from 1e9 on is a time since 1970 in seconds, and from 1e11 on
// in milliseconds. The package ignores numbers from 1e14 on. A smaller number is a time too if it
// is within 40 days of the API's clock, because simulated clocks show times before 2001. A number
// from now is in seconds. It is in milliseconds by its name, by the profile, if it is above the
// window that the headers name, or if Retry-After has a thousandth of it.
//
// If the headers of a 429 lack a wait, [Generic] and the profiles of language models read its JSON:
// retry_after and retry_after_ms, at the top or within "error". They also know the bodies of
// Telegram, Close, Google and OpenRouter.
//
// # Refusals
//
// The statuses 429 and 529 are refusals. 503 is one if the package understands its Retry-After.
// A profile adds other statuses, such as GitHub's 403 or the 200 of a GraphQL API. Generic has 420,
// a 402 that reports an exhausted policy and its reset, and codes of Mashery, Lark and Bybit. The
// [Reason] of a 429 is [Rate], unless the profile or an exhausted policy of a day or longer says
// otherwise. The Reason of a 503 is [Unknown], and that of a 529 is [Overload].
//
// A refusal is about the account unless the response names something narrower with a limit of its
// own: an endpoint, an object, or a set of names. Then its Reason is [Lock], which holds no further
// call, and Scope says what it is. The loss: the next calls of that scope are refused as well.
//
// # Wait
//
// The first rule that applies gives [Signal.Wait]:
//
//  1. A response from a cache, with an Age above 0 or X-From-Cache, has a zero Signal.
//  2. A refusal waits for its Retry-After, even if a reset is longer. The longest of several
//     values counts. Milliseconds replace seconds if they are longer, or at most a second shorter.
//     On other responses Retry-After does not count.
//  3. A refusal waits for the longest reset of an exhausted policy, or for what the profile's
//     Judge asks if that is longer. A [Bucket] of requests counts for one unit, and 1 s at least.
//     A policy without a reset counts for its window, up to a minute. If no policy is exhausted,
//     the reset of the only policy counts, up to a minute. Resets do not count for a [Lock] or an
//     [Overload], and only those of exhausted policies for [Concurrency]. For [Unknown] and
//     [Quota], a policy with units left does not count.
//  4. A refusal for [Rate] waits for the profile's Penalty.
//  5. A success waits for the longest reset of an exhausted policy of the kind [Window].
//
// A wait of 0 or in the past counts as absent. Points in time are measured by the response's own
// Date, so a wrong local clock does no harm. A second is added to them, because APIs cut them to
// whole seconds. Two policies from different families of headers are one if their limits are equal
// and their resets differ by at most 2 s.
//
// # Limits to configure
//
// Leave a quota of an hour or a day to the headers if they report its rest and its reset. Calls
// then leave as fast as the bucket's limits allow, and are held once the quota is exhausted.
// outbound.PerHour would space GitHub's 5,000 calls by 0.72 s each. Configure the limits that no
// header reports, such as those on bursts. Until the first response the API's state is unknown, and
// several calls that leave together may be refused.
//
// # What is not trusted
//
// A number has at most 20 digits, with or without decimals. Times are rounded up and at most 2^31
// s. Resets of more than 40 days are ignored. Remaining is at most the limit. If a header comes
// twice, the least limit, the least remaining and the latest reset count. Names are valid UTF-8 of
// at most 128 bytes without control characters.
//
// Of one header the package reads 16 lines of at most 1 KiB, and of all together 4 KiB and 32
// policies. A function Judge reads lines of up to 8 KiB, which take 50 µs with Meta. A structured
// field has at most 64 items. In a response with more than 128 headers, those with a name inside are
// ignored. The package reads 8 KiB and 1,024 values of a body. Reading takes at most 20 µs for
// headers and 30 µs more for a body, or 1 ms if gzip is made to be slow. Each call of
// [Response.JSON] is a search of its own. To bound the bytes of headers, set MaxResponseHeaderBytes
// of [net/http.Transport], which is 10 MB otherwise.
//
// Read waits for a body only if the profile looks at it, and for at most 2 s. A success that may be
// a stream waits until 10 ms after its first bytes. [Profile.ReadEarly] reports a refusal before
// that.
package profile
