// Package transport paces the requests of an [http.Client], and of everything that is built on one,
// to what an API allows:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	client := &http.Client{Transport: &transport.Transport{Limiter: bucket}}
//
// A request over the limit fails immediately with an [*outbound.ThrottledError], which has the time
// to retry. With a queue around the bucket, the request waits. [Transport.For] chooses the limiter
// by host, token or route. [Transport.Cost] or [WithCost] chooses the cost. [Transport.Profile]
// reads what the response says. In a job of [outbound.Do], Wrap or Each with the same bucket, the
// job's permit pays for the first request.
//
// # What a response changes
//
// A response adjusts the bucket that admitted the request, for all processes that share it:
//
//   - A refusal because of the rate or a quota, such as a 429, holds the bucket for as long as the
//     API asks, or for 1 s. If calls have succeeded since the last hold, the speed falls to 0.9 of
//     what it was, or to 0.7 if that hold ended less than 10 s ago. If none has, the hold is at
//     least twice as long as the last one, up to MaxHold or an hour. Several refusals of calls that
//     left before the first of them arrived slow the bucket once.
//   - ENHANCE_YOUR_CALM of HTTP/2 ([ErrCalm]) counts as a 429 without a time, in a body as well.
//   - A refusal of too many calls in flight holds it for 1 s at most, and does not slow it. Use
//     [outbound.InFlight]. A 503 with a Retry-After holds it for that time, and does not slow it.
//   - A success that reports a quota with less remaining than the calls that left since holds it
//     until the reset, if that is more than 2 s away. Nearer resets hold nothing. The limit of one
//     endpoint holds all calls of the limiter.
//   - A policy whose reset is when all units are free again holds for one unit, after a refusal
//     only. The transport recognizes it as soon as more remains before its reset.
//   - Other refusals, such as a lock or an overload, other codes of HTTP/2, other statuses from 500
//     on, cached responses, and what [Transport.OnSignal] sets to the zero Signal change nothing.
//   - A response that the profile counts as free, such as GitHub's 304, returns its cost if all
//     limits of the bucket span an hour or more. A limit on bursts keeps it. [Transport.Units]
//     separates both. A call above what the API ever admits returns its tokens, not its request.
//
// A refusal is a lock if the response names something narrower than the account: an endpoint, an
// object, or a set of names. Without a name it holds the whole limiter: hours for Bluesky's
// sign-in. Give such endpoints limiters of their own by [ByRoute] or [Discovered], and [OnlyScope].
//
// No response holds a bucket for longer than [Transport.MaxHold], a day by default, or makes calls
// faster than the configured limits. With [Adopt], lower limits that the API reports replace the
// configured ones. If the body of a refusal comes more than 10 ms after its headers, the transport
// applies the headers first. It waits for the body for up to 2 s after them, and the body can only
// lengthen the hold.
//
// # What learning costs
//
// Configure the API's real limits if you know them: then it refuses nothing. Otherwise the speed
// falls by a tenth with each hold, and rises by a tenth each minute. In simulations, 20 processes
// shared a bucket with twice the API's limit, a store 2 ms and an API 50 to 200 ms away:
//
//   - With Retry-After they used 96 to 100 % of the quota after the first minute, and 94 % where
//     the API counts a log of 10 s. The API refused 0.3 to 0.8 % of the calls.
//   - Without any hint they used 93 %. It refused 0.4 % at 5 calls per second, and 2 % at 1.
//   - An API that refuses everything gets one call in the time that it asks for, up to MaxHold. If
//     it asks for none, it gets one an hour, or one per MaxHold if that is less. After
//     [outbound.Bucket.Resume], the speed is back within two seconds.
//
// # When a call ends
//
// A permit that frees something, such as a call in flight, and one that OnResponse gets end with
// the response's body: at its end, its failure or its Close. If the program forgets the body, the
// permit ends with the request's context, or else when the garbage collector finds it. A 101
// Switching Protocols keeps its permit until it is closed, and its body stays writable. All other
// permits end with the headers. A request stays charged even if it could not be dialed. One that is
// sent more than 10 ms after its admission, because it had to open a connection, counts from then
// on: see [outbound.AnswerSent].
//
// # Retries, redirects, timeouts
//
// The transport retries nothing: retry above it, as package retry does, so that each attempt pays.
// Each hop of a redirect is a request and pays. The answer of another host than the first adjusts
// only a limiter that For has chosen. An [http.Transport] sends a request again by itself if an
// idle connection breaks, and over HTTP/2 up to eight times after REFUSED_STREAM. After a graceful
// GOAWAY that leaves the request out, Go 1.26 and 1.27 do so without a bound and a pause. Each of
// those sends asks the limiter again and waits for it, and the permit before ends. Up to eight are
// sent even if the limiter refuses their cost, but none in a hold or without a slot of an InFlight.
// Then it asks again after a pause. This needs a Base with a method CloseIdleConnections, or Unwrap
// that leads to one.
//
// [Transport.Timeout] bounds a request from its admission to the end of its body. The Timeout of an
// [http.Client] and deadlines of contexts count the wait in a queue as well. A queue refuses early
// what cannot be answered in time, with an error that is a timeout.
//
// # Nested transports
//
// A transport may be the Base of another, such as a limiter for each tenant around a total. A
// wrapper between them needs a method Unwrap() http.RoundTripper. Each charges the request, and the
// outermost one that has a limiter for it judges the response. [Transport.Judge] changes that, and
// [OnlyScope] separates refusals by their scope. If a request ends at the inner limiter, nothing
// was sent, and the outer permit returns its cost. Limits that always apply together belong in one
// bucket. A [Pool] sends each request by one of several transports: API keys, or regions.
package transport
