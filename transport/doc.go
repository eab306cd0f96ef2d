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
// [Transport.Base] as it is. The response says whether the API agreed:
//
//   - 429 is a refusal by the API: all who share the bucket slow down. If there
//     is a Retry-After, they stop until it is over, for at most
//     [Transport.MaxHold]. Seconds, with decimals, and dates are understood;
//     dates are measured by the response's own Date. What is not understood, is
//     negative or is over counts as if the API had not said how long.
//   - 503 is one only with a Retry-After that is not over.
//   - A response out of a cache, with an Age above 0 or X-From-Cache, says
//     nothing.
//   - Everything else is for [Transport.OnResponse] to judge, and so is a 429
//     that has other reasons than this quota.
//
// A request that could not be sent because dialing failed gets its cost back.
// After any other error the API may have counted it, and it stays charged.
//
// # When a call is over
//
// A permit that has something to free, such as a place among the calls at once
// ([outbound.AtOnce]), is done when the response's body has been read to its
// end, has failed or was closed: close bodies, as always. A streamed response
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
// comes here by itself and pays to the limiter that For gives it; with one
// Limiter for all hosts, any host to which a redirect leads can ask all calls to
// wait, and [ByHost] keeps them apart.
// [TooManyRequests] tells clients that retry when to come back.
//
// [http.Client.Timeout] counts the time in a queue, too, and so does every
// deadline of a request's context. A queue refuses early what cannot be in time;
// that error is an [*outbound.ThrottledError] and a timeout, as
// [url.Error.Timeout] tells.
//
// # Limiters in a row
//
// A transport may be the Base of another, for a limit of the account around one
// of each tenant, say. Only the outermost may wait, and inner ones are bare
// buckets: behind a second queue the place that the first has given goes stale,
// and calls leave together that were to go apart. A request that an inner one
// refuses has paid the outer one. Several limits that always apply together are
// better one bucket.
//
// # Header floods
//
// Only the first 16 values of a header are read, and none longer than 128
// bytes. How many bytes of headers are taken in at all is
// [http.Transport.MaxResponseHeaderBytes], 10 MB if it is not set.
package transport
