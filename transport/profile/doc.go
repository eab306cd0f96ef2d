// Package profile reads what the responses of an API say of its limits:
//
//	signal := profile.GitHub.Read(resp, time.Now())
//	if signal.Throttled {
//		fmt.Println(signal.Reason, signal.Wait)
//	}
//
// A [Signal] tells whether the API refused the call, why, for how long no further call
// should go, and which limits the API has told of: a set of [Policy]. It is evidence from
// outside, which may slow a program down and never speeds it up. The package keeps nothing
// between two responses and sends nothing. It waits only for a body that a profile asks to
// look at, for at most 2 s; what the body has said until then counts. [Profile.ReadEarly]
// tells of a refusal before that.
//
// # What is read from every response
//
// [Generic], and a nil *Profile, know
//
//   - Retry-After (RFC 9110 §10.2.3) in seconds, with decimals, as a date in the three forms
//     of HTTP, as ISO 8601, and as a time since 1970 if that is within 40 days of the API's
//     own clock; X-RateLimit-Retry-After likewise; Retry-After-Ms, X-Ms-Retry-After-Ms and
//     X-Amz-Retry-After, which are in milliseconds;
//   - RateLimit and RateLimit-Policy as the IETF's drafts
//     draft-ietf-httpapi-ratelimit-headers-00 to -11 have them: three headers, a dictionary,
//     or lists by the name of the policy, with units and partitions. The package reads them
//     by the rules of RFC 9651: it ignores the whole of a field with one wrong character;
//   - X-RateLimit-Limit, -Remaining and -Reset, and X-Rate-Limit-*, which have no standard,
//     and GitLab's RateLimit-Name and RateLimit-ResetTime.
//
// A reset may be a number of seconds, the time since 1970 in seconds or milliseconds, a
// duration as Go writes it, a date of HTTP, ISO 8601 or JavaScript. A number of 1e9 and more
// is a time since 1970, of 1e11 and more one in milliseconds, and of 1e14 and more nothing. A
// lesser number is a time, too, if it is within 40 days of the API's own clock: the clocks of
// simulations show times before 2001. Nothing tells milliseconds from now from seconds,
// unless Retry-After says the same in seconds. Otherwise the longer reading counts, and a
// profile corrects it.
//
// # Refusals
//
// 429 is a refusal, and 529; 503 only with a Retry-After that the package understands,
// because otherwise the API has troubles of its own. A profile knows which other statuses
// are, such as GitHub's 403 or the 200 of a GraphQL API. The [Reason] of a 429 is [Rate]
// unless the profile or an exhausted policy of a day or longer tells otherwise, that of a
// 503 is [Unknown], and that of a 529 [Overload].
//
// # Wait
//
// How long no further call should go is, in this order:
//
//  1. A response out of a cache, with an Age above 0 or X-From-Cache, says nothing.
//  2. On a refusal, Retry-After, also if it is shorter than a reset. On any other response it
//     is a hint for polling, and does not count. Of several lines, or several values that a
//     proxy has joined with a comma and a blank, the longest counts. A value in milliseconds
//     counts instead of the seconds if it is longer, or if it is less by no more than a
//     second: then the API rounded it to those seconds.
//  3. On a refusal without that, the longest reset of a policy of which nothing remains, or
//     what the function of the profile says if that is longer; else the reset of the only
//     policy. A [Lock] or an [Overload] has nothing to do with resets, a [Concurrency] only
//     with those of exhausted policies, and a 503 for the reason [Unknown] with none of a
//     policy that has something left.
//  4. The profile's Penalty, for [Rate].
//  5. On a response that is no refusal, the longest reset of a policy of the kind [Window] of
//     which nothing remains.
//
// A Retry-After or a reset of 0, or one that is over, counts as if the API had not said it.
// The package measures points in time by the Date of the same response, so that a wrong
// clock here does no harm, and adds a second, because APIs cut them to whole seconds. Two
// families of headers that tell of the same limit, with resets within two seconds, are one
// policy; others are two.
//
// # Limits to configure
//
// A quota of an hour or a day is best left to the headers, where they tell what remains of it
// and when it resets: all calls go as fast as the bucket's other limits allow, and hold until
// the reset where nothing remains. outbound.PerHour in the bucket would space them evenly
// over the hour instead, GitHub's 5 000 by 0.72 s, so that 300 calls take 215 s and no faster
// limit beside it ever binds. Limits that no header tells, such as those on bursts, belong
// into the bucket. Until the first answer nobody knows what remains: the API may refuse
// several calls that leave together then.
//
// # What is not trusted
//
// A number is at most 20 digits, with or without decimals: no sign, no exponent, no NaN. The
// package rounds times up, cuts them at 2^31 seconds, and ignores a reset of more than 40
// days. What remains is at most the limit, and less than nothing is nothing; but -1 of an
// unknown limit is unknown. Of a header that comes twice, the least limit and remaining and
// the latest reset count. Names are at most 128 bytes of valid UTF-8 without control
// characters.
//
// The package ignores lines above 1 KiB, those after the 16th of a name, policies after the
// 32nd, and what comes when it has read 4 KiB; of more than 128 different headers, those
// with a name inside. Of X-Business-Use-Case-Usage, in which Meta tells of many objects, it
// reads lines of 8 KiB, which takes some 50 µs. Of a body it looks at 8 KiB at most, which is more than refusals have;
// what a success says at the end of a longer one holds nobody. A search in a body ends after
// 1024 values. That bounds the time for a response to some 20 µs for its headers, whatever
// they contain, and some 30 µs more for a body, or a millisecond if that is gzipped so as to
// be slow to unpack. In a function Judge each call of [Response.JSON] is a search of its own.
// Wait has no other cap: its user says how long a response may hold all calls.
//
// # Vendors
//
// Each of the package's profiles says what it knows and where that is written. [ByName] finds
// them by their names. To write one, see the example and [Profile].
//
// # The files
//
//	profile.go         Profile, Field, Peek; the order in which a response is read
//	signal.go          Signal and Policy: bounds, and how long to wait
//	response.go        Response, as a function Judge sees it
//	header.go          the headers that are generally known
//	limitheaders.go    a limit, what remains and the reset, in three headers
//	retryafter.go      Retry-After and its relatives
//	ratelimit.go       the IETF's RateLimit and RateLimit-Policy
//	structured.go      structured fields, RFC 9651
//	field.go           the headers that a profile lists
//	number.go, timestamp.go   numbers, durations and points in time
//	body.go, json.go   a body that is read ahead, and values in it
//	vendors*.go        the profiles, and ByName
package profile
