// Package transport paces the requests of an [http.Client], and of everything that is built on one,
// to what an API allows:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	client := &http.Client{Transport: &transport.Transport{Limiter: bucket}}
//
// With a bucket, a request without room fails at once with an [*outbound.ThrottledError], which
// says when to come back. With a queue around the bucket it waits for its turn.
//
// # What a request goes through
//
// [Transport.For] chooses the limiter, by host, token or route, and [Transport.Cost] or [WithCost]
// the cost. When the limiter has admitted the request, it goes to [Transport.Base] as it is.
// [Transport.Profile] reads what the response says. That steers the bucket that admitted the call,
// for all who share the bucket, and no other:
//
//   - A refusal, such as 429, because of the rate or a quota: all wait for as long as the API
//     has asked, or 1 s if it has not said. If calls had succeeded since the last such pause,
//     they go on at 0.9 of their speed, or at 0.7 if that pause ended less than 10 s ago. If
//     none had, the pause was too short, and the next is at least twice as long, up to
//     MaxHold or an hour. Of all refusals of calls that left before the bucket knew of the
//     first of them, only that one slows it down; the others may make the wait longer.
//   - A refusal of too many calls at once: all wait for 1 s at most, and the bucket does not
//     slow down; [outbound.InFlight] is the cure.
//   - 503 with a Retry-After: all wait for as long, and the bucket does not slow down.
//   - A refusal for another reason, such as a lock or an overload, and one that
//     [Transport.OnSignal] has set to the zero Signal, changes nothing.
//   - A success that tells of a quota which comes back as a whole, in more than 2 s, and of
//     which nothing remains, or less than has left since: all wait until its reset. A nearer
//     reset holds nobody: a program that keeps the limit of a short window comes to its end
//     just before the reset, and a wait in whole seconds would waste the next window.
//   - Any other answer with a status of 500 or above, as of a load balancer whose server is
//     down, is neither a refusal nor a success.
//   - A response out of a cache says nothing, and is no success either.
//
// In a job of [outbound.Do], Wrap or Each with a limiter of the same bucket, the job's permit
// admits the first request, and is charged once: see [outbound.Permit.AcquireIn].
//
// Some profiles look at the bodies of refusals. A body has 10 ms from its headers on. The transport
// judges what comes in that time together with the headers: a refusal that only its body calls a
// lock holds nobody. If the body is later, the transport applies the headers first, so that all
// wait from then on, whatever the body says. It goes on waiting for the body until 2 s after the
// headers. What the body says may make the wait longer, never shorter. Then RoundTrip returns the
// response, and ignores what comes of the body later.
//
// Where a response says several things, Retry-After counts before a reset; package profile has the
// rest of the order. No response holds a bucket for longer than [Transport.MaxHold]. That does not
// bound how long a request waits: its context or its queue does, and a request that would wait
// longer fails at once with the time to come back. No response makes calls faster than the
// configured limits. A value that cannot be true, such as a negative time, NaN or a time that is
// over, counts as if the API had not said it.
//
// # What learning costs
//
// The best is to configure the API's real limits: then it refuses nothing. Where they are not
// known, refusals tell, and the speed follows: down by a tenth with each episode, and up by a tenth
// each minute. Simulations had 20 workers that share a bucket, a store 2 ms and an API 50 to 200 ms
// away, and limits configured at twice what the API allows:
//
//   - With Retry-After, the fleet uses 96 to 100 % of the real quota after the first minute
//     where the API has leaky buckets, windows, or a log of a minute, and 94 % with a log of
//     10 s. The API refuses it some 20 times in 21 minutes, one or two calls each time: 0.3
//     to 0.8 % of all.
//   - Without any hint it uses 93 %, and the API refuses 0.4 % of the calls at 5 calls per
//     second and 2 % at 1.
//   - When the API then doubles its limit, the fleet uses 85 % of it after 7 minutes.
//   - With an hourly quota and its headers it uses all of it, and the API refuses nothing,
//     also if others use the same quota.
//   - The fleet asks an API that refuses everything once per MaxHold, or once an hour if that
//     is less. Full speed is back when the last pause has ended and the speed has recovered:
//     within MaxHold and 10 minutes, unless the speed had fallen below half. After
//     [outbound.Bucket.Resume] it is back within a second.
//
// A request that was tried stays charged. After most errors the API may have counted it. The API
// has not seen a request that failed to dial, but a dial is a call to the host as well: if its cost
// came back, the program would dial an API that is down as fast as connections fail, and the more
// so while the API comes up again.
//
// # When a call is over
//
// A permit that has something to free, such as a place among the calls at once
// ([outbound.InFlight]), is done when the program has read the response's body to its end, when the
// body has failed, or when the program has closed it: close bodies, as always. A body that nobody
// closes keeps its place until the request's context is done, so give each request a context that
// ends, or the transport a Timeout. If the context goes on, only the garbage collector gives the
// place back, at a time of its own. A streamed response keeps its place as long as it streams. The
// program can write to the body of a 101 Switching Protocols, which keeps its place until it is
// closed. If there is no body, or nothing to free and no OnResponse, the permit is done when the
// headers are there, and the transport passes the body on untouched.
//
// # Retries, redirects, timeouts
//
// Each call of RoundTrip is one request: the transport retries nothing. Retries belong above,
// around the client, so that each attempt pays; below, as Base, all attempts but the first would be
// free. Each hop of a redirect is a request of its own, and pays to the limiter that For gives it,
// or else to Limiter. The answer of another host than the first one steers only a limiter that For
// has given, as [ByHost] does: Limiter is about the API that was asked. [TooManyRequests] tells
// clients that retry when to come back.
//
// An [http.Transport] sends a request again by itself if a connection that it kept idle breaks
// before an answer came, and if the request can be repeated: once for each idle connection of the
// host, and at last on a new one. Over HTTP/1, at most [http.Transport.MaxIdleConnsPerHost] of them
// are free; that is 2 if it is not set. Over HTTP/2 it also sends again what the server refuses
// with REFUSED_STREAM, a POST too if it can read the body again: eight times in all, the last seven
// at once and after some 1, 2, 4, 8, 16 and 32 s, on a connection that lives. The API may count all
// of those, and one permit pays for them, also if the last one cannot dial. To pay for what was
// really sent in one attempt without redirects, count it, and settle:
//
//	var sent atomic.Int64
//	ctx, permit := transport.WithCost(ctx, outbound.Cost{1})
//	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
//		WroteRequest: func(httptrace.WroteRequestInfo) { sent.Add(1) },
//	})
//	resp, err := client.Do(req.WithContext(ctx))
//	permit.Settle(outbound.Cost{float64(max(1, sent.Load()))})
//
// [Transport.Timeout] bounds a request from its admission to the end of its body.
// [http.Client.Timeout] counts the time in a queue, too, and so does every deadline of a request's
// context. A queue refuses a request early that cannot be in time; that error is an
// [*outbound.ThrottledError] and a timeout, as [url.Error.Timeout] tells.
//
// # Limiters in a row
//
// A transport may be the Base of another: tenants with a limiter each around a total, or a total
// around the pace of each host. A wrapper of your own between the two needs a method Unwrap()
// http.RoundTripper, or both judge, and the inner one is held as well. Package queue tells which
// limit goes outside; both may wait. A response is judged once, by the outermost transport that has
// a limiter for the request, and with its Profile. So a refusal of one tenant holds that tenant and
// not the total inside. Where the total is outside, [JudgeNever] there leaves responses to the
// host's own limiter. Where the API says whom a refusal is for, both judge: see [OnlyScope]. The
// inner limiter only counts the call, and learns of no quota. The outermost transport hears of a
// response when the inner one returns it. A request that an inner one refuses has paid the outer
// one. Several limits that always apply together are better one bucket.
//
// # Header floods
//
// The transport reads only the first 16 values of a header, and none longer than 1 KiB: see package
// profile. [http.Transport.MaxResponseHeaderBytes] bounds how many bytes of headers net/http takes
// in at all: 10 MB if it is not set.
//
// # The files
//
//	transport.go   Transport, and the one way of a request through RoundTrip
//	steer.go       what a response says, as the Answers that the call's bucket hears
//	row.go         Judge: which of several transports in a row judges a response
//	attempt.go     an admitted request: its permit, shared between body and user
//	cost.go        WithCost
//	refusal.go     TooManyRequests
//	atend.go       AtEnd: the last bytes of a body
//	by.go          ByHost, ByHeader
//	host.go        one name for all spellings of a host
//	route.go       ByRoute
//	discovered.go  Discovered: limiters by the names that an API tells
package transport
