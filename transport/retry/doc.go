// Package retry sends requests again that an API or the network has refused. It configures a client
// of [github.com/hashicorp/go-retryablehttp] around a [transport.Transport], so that the limiter
// admits every attempt:
//
//	bucket := outbound.Must(outbound.NewBucket("weather", outbound.PerSecond(10)))
//	client := retry.NewClient(&transport.Transport{
//		Limiter: queue.New(bucket, queue.Config{}),
//	}).StandardClient()
//	resp, err := client.Get("https://weather.example.com/today")
//
// StandardClient returns an [http.Client] for programs and SDKs. It follows redirects, and each hop
// is a request of its own. The client of NewClient itself returns a redirect as it is.
//
// # What is sent again, and when
//
//   - If the limiter refuses an attempt, the attempt waits for the RetryAfter and asks again. If
//     RetryAfter is zero, it asks after 10 ms, doubled up to 1 s. The request was not sent, so this
//     counts as no attempt.
//   - After a refusal because of limits the client waits as long as the API asks. Such a refusal is
//     a 429, a 503 with a Retry-After, one that the vendor's Profile has, or [transport.ErrCalm].
//     It adds up to a tenth, at most 1 s. A queue admits the next attempt behind the calls that
//     came meanwhile.
//   - After a failure, or a refusal without a time, the client waits for its RetryWaitMin, 1 s,
//     doubled up to its RetryWaitMax, 30 s, and up to half more. Failures are errors of the network
//     or of a store, and statuses from 500 on, except 501 and 505.
//
// The client's RetryMax, 4, bounds refusals by the API and failures together. [Config.Budget]
// bounds the retries of all requests together. [Config.MaxWait] and the context's deadline bound
// the waits. Without both, the client waits for at most 2 min if the API or the limiter asks for a
// time. The client does not begin a wait that could end later.
//
// If a member of a [transport.Pool] fails, another member gets the request, without a pause if that
// is free. This includes a 401, 402 or 403, and a key without credit. It takes of the Budget, and
// counts as no attempt: each member gets the request once in an attempt. If all members rest, the
// client waits as above.
//
// The client repeats a POST, a PATCH or another non-idempotent method only if the API cannot have
// carried it out. That is after a 429, an error of dialing, or a store's error. HTTP/2's
// ENHANCE_YOUR_CALM may end a request that the API has begun. With an
// Idempotency-Key, or where [Config.Safe] allows it, the client always may.
//
// These end the attempts: a cost above a capacity, a closed queue, a response from a cache, an
// account without credit, an untrusted certificate, and all other statuses. A call above what
// the API ever admits ends them, too.
//
// # What comes back
//
// The cause alone decides, for the client and for its StandardClient:
//
//	the API has answered, whatever it says     the last response, unread
//	the limiter refuses for too long           Error around the ThrottledError
//	the limiter fails: a bad cost, a store     Error around the limiter's error
//	no answer, such as a broken connection     Error around the cause
//	the context is cancelled                   context.Canceled
//	the deadline passes in a limiter's wait    Error around the ThrottledError
//	the deadline passes during an attempt      context.DeadlineExceeded
//
// The ThrottledError has the Key of the limiter's bucket, and it is [context.DeadlineExceeded] if
// the deadline is why the attempt does not wait. If the transport has an OnRefusal, the client
// returns the result of that instead of the limiter's error. No response comes with an error. Other
// responses are read, up to 64 KiB in up to 1 s, and closed.
//
// # Below an SDK
//
// An SDK makes its own errors of the responses. An SDK that sends requests again by itself makes no
// more attempts than the larger of both, if it does one of these:
//
//   - It respects X-Should-Retry: false, which the client adds to a response after its last
//     attempt. The SDKs of OpenAI and Anthropic do.
//   - It announces its attempts in Amz-Sdk-Request, as those of AWS do. The client leaves the
//     responses to it.
//   - It sends an Idempotency-Key, and the same one again, as Stripe's does. If the client has
//     given up a request that it has sent more than once, a request with the same method, URL and
//     key returns an [*Error] unsent for 30 s.
//
// The attempts of other SDKs multiply. Attempts after an error without a response multiply, too.
// For these, turn the SDK's retries off, or set the client's RetryMax to 0: then the client only
// waits for the limiter. SDKS.md has the settings for eleven SDKs.
//
// # What this does not cover
//
//   - MaxWait bounds the wait of each attempt. Only the context bounds all attempts together.
//   - A limiter is waited for where NewClient finds it: in the transport, and in the transports
//     that are its Base. The client returns the error of any other limiter.
//   - HTTPClient.Timeout ends the whole request. [transport.Transport.Timeout] bounds an attempt.
//   - StandardClient reads a request's body into memory and does not close it, as retryablehttp has
//     it. It sets the Body of the request that it gets.
//   - An error of net/http, such as one about a Location that does not parse, keeps its own text.
//     An [http.Client] adds the URL with its query to every error.
//   - With a CheckRetry of the program's own, MaxWait bounds only the limiter, and Safe and Budget
//     are not asked. The client waits as above. A PrepareRetry of its own calls the first one, or a
//     pause after an error may end after the deadline.
package retry
