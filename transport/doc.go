// Package transport paces the requests of an [http.Client], and of everything
// that is built on one, to what an API allows:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	client := &http.Client{Transport: &transport.Transport{Limiter: bucket}}
//
// With a bucket, a request without room fails at once with an
// [*outbound.ThrottledError], which says when to come back. With a queue around
// the bucket it waits for its turn.
//
// # What a request goes through
//
// [Transport.For] chooses the limiter, by host, token or route, and
// [Transport.Cost] or [WithCost] the cost. Once admitted, the request goes to
// [Transport.Base] as it is. What the response says is read by [Transport.Profile]
// and steers the bucket that has admitted the call, for all who share it, and no other:
//
//   - A refusal, such as 429, whose reason is the rate or a quota: all wait for as long
//     as the API has asked, or 1 s if it has not said, and if calls had succeeded since
//     the last such pause, they go on at 0.9 of their speed, or 0.7 if that pause
//     ended less than 10 s ago. If none had, the pause was too short, and the next is
//     at least twice as long, up to MaxHold or an hour. Of all refusals of calls that
//     left before the first of them was known, only that one counts.
//   - A refusal of too many calls at once: all wait for 1 s at most, and nobody is
//     slowed; [outbound.AtOnce] is the cure.
//   - 503 with a Retry-After: all wait for as long, and nobody is slowed.
//   - A refusal for other reasons, such as a lock or an overload, and one that
//     [Transport.OnSignal] has made nothing of, changes nothing.
//   - On a success, a quota that comes back as a whole, in more than 2 s, and of which
//     nothing remains, or less than has left since: all wait until its reset. A reset
//     that is nearer holds nobody: whoever keeps the limit of a short window comes to
//     its end just before it, and to wait in whole seconds would waste the next one.
//   - A response out of a cache says nothing, and is no success either.
//
// Some profiles look at the bodies of refusals, and a body has 10 ms from its headers on.
// What comes in that time is judged together with the headers: a refusal that only its
// body calls a lock holds nobody. If the body is later, the transport heeds the headers
// first, so that all wait from then on, whatever the body says. It goes on waiting for the
// body until 2 s after the headers; what that says may make the wait longer, never shorter.
// Then RoundTrip returns the response, and what comes of the body later is not heeded.
//
// Where a response says several things, Retry-After counts before a reset, and package
// profile has the rest of the order. No response holds a bucket for longer than
// [Transport.MaxHold], which has nothing to do with how long a request waits: that is
// for its context or its queue to say, and beyond it comes an error with the
// time, at once, and not a shorter wait. No response makes anybody faster than
// the limits that were configured. What cannot be believed, such as a negative time,
// NaN or one that is over, counts as if it had not been said.
//
// # What learning costs
//
// The best is to configure the API's real limits: then nothing is refused. Where they are not
// known, refusals tell, and the speed follows: down by a tenth with each episode, and
// up by a tenth each minute. Simulated with 20 workers that share a bucket, a store 2 ms
// and an API 50 to 200 ms away, and limits configured at twice what the API allows:
//
//   - With Retry-After, 96 to 100 % of the real quota are used after the first minute
//     where the API has leaky buckets, windows, or a log of a minute, 94 % with a log of
//     10 s. Some 20 times in 21 minutes the fleet is refused, one or two calls each time:
//     0.3 to 0.8 % of all.
//   - Without any hint 93 % are used, with 0.4 % of the calls refused at 5 calls per
//     second and 2 % at 1.
//   - When the API then doubles its limit, 85 % of it are in use after 7 minutes.
//   - With an hourly quota and its headers all of it is used and nothing refused, also
//     if others use the same quota.
//   - An API that refuses everything is asked once per MaxHold, or once an hour if that
//     is less. Full speed is back as soon as the last pause has ended and what was
//     slowed has recovered: within MaxHold and 10 minutes, unless the speed had fallen
//     below half. After [outbound.Bucket.Resume] it is back within a second.
//
// Whatever was tried stays charged. After most errors the API may have counted the
// request. One that failed to dial it has not seen, but a dial is a call to the host as
// well: with its cost given back, an API that is down would be dialed as fast as
// connections fail, and the more so while it comes up again.
//
// # When a call is over
//
// A permit that has something to free, such as a place among the calls at once
// ([outbound.AtOnce]), is done when the response's body has been read to its
// end, has failed or was closed: close bodies, as always. A body that nobody closes
// keeps its place until the request's context is done, so give each request a context
// that ends, or the client a Timeout. If the context goes on, only the garbage collector
// gives the place back, whenever it runs. A streamed response
// keeps its place as long as it streams. The body of a 101 Switching Protocols
// can be written to and keeps its place until it is closed. If there is no body,
// or nothing to free and no OnResponse, the permit is done when the headers are
// there, and the body is passed on untouched.
//
// # Retries, redirects, timeouts
//
// Each call of RoundTrip is one request: nothing is retried here. Retries
// belong above, in what holds the client, so that each attempt pays; put below,
// as Base, all attempts but the first would be free. Each hop of a redirect
// comes here by itself and pays to the limiter that For gives it, or else to Limiter.
// What another host than the first one answers steers only a limiter that For has
// given, as [ByHost] does: Limiter is about the API that was asked.
// [TooManyRequests] tells clients that retry when to come back.
//
// An [http.Transport] sends a request again by itself where a connection that was kept
// idle breaks before it has brought an answer, if the request can be repeated: once for
// each idle connection of the host, and at last on a new one. The API may count all of
// those, and one permit pays for them, also if the last one cannot dial:
// over HTTP/1 [http.Transport.MaxIdleConnsPerHost], 2 if it is not set, is the most that is
// free. To pay for what was really sent in one attempt without redirects, count it, and
// settle:
//
//	var sent atomic.Int64
//	ctx, permit := transport.WithCost(ctx, outbound.Cost{1})
//	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
//		WroteRequest: func(httptrace.WroteRequestInfo) { sent.Add(1) },
//	})
//	resp, err := client.Do(req.WithContext(ctx))
//	permit.Settle(outbound.Cost{float64(max(1, sent.Load()))})
//
// [http.Client.Timeout] counts the time in a queue, too, and so does every
// deadline of a request's context. A queue refuses early what cannot be in time;
// that error is an [*outbound.ThrottledError] and a timeout, as
// [url.Error.Timeout] tells.
//
// # Limiters in a row
//
// A transport may be the Base of another, for a limit on all calls at once around the
// pace of each host, say. Package queue tells which limit goes outside; both may wait.
// The outer one reads what the inner one returns: where its limiter has nothing to do
// with what one host answers, an OnSignal that sets all to the zero Signal, or
// [OnlyScope], keeps that from holding the others. It hears of a response when the inner
// one returns it: up to 2 s late, if the inner one's profile waits for a body that
// stalls. A request that an inner one refuses has paid the outer one. Several limits that
// always apply together are better one bucket.
//
// # Header floods
//
// Only the first 16 values of a header are read, and none longer than 1 KiB: see
// package profile. How many bytes of headers are taken in at all is
// [http.Transport.MaxResponseHeaderBytes], 10 MB if it is not set.
package transport
