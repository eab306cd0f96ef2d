// Package grpc paces the calls and streams of a gRPC client to what an API allows.
//
//	bucket := outbound.Must(outbound.NewBucket("speech", outbound.PerSecond(10)))
//	pacer := &pace.Pacer{Limiter: queue.New(bucket, queue.Config{})} // pace is outbound/grpc
//	conn, err := grpc.NewClient(target, append(pacer.DialOptions(), options...)...)
//
// The limiter admits each attempt of a unary call and of a stream before it is sent. In a job of
// outbound.Do, Wrap or Each with the same bucket, the job's permit pays for the first attempt. A
// stream is in flight until it ends with an error or io.EOF, or until its context ends; its
// messages cost nothing.
//
// # Errors
//
// A call that the limiter refuses fails with the limiter's error before it is sent. errors.As and
// errors.Is find that error, such as an *outbound.ThrottledError. The error also has the status
// that an API would return:
//
//	the limiter's error                              its status
//	*outbound.ThrottledError, early refusals too     ResourceExhausted, RetryAfter as RetryInfo
//	a store that failed, a closed queue              Unavailable
//	the call's context is done                       Canceled or DeadlineExceeded
//	outbound.ErrInvalid, outbound.ErrTooLarge        InvalidArgument
//	another error                                    Unknown
//
// # What the end of an attempt changes
//
// The end of an attempt adjusts the bucket that admitted it, for all processes that share the
// bucket:
//
//	ResourceExhausted                                a refusal
//	HTTP 429 of a gateway, which gRPC calls          a refusal
//	  Unavailable
//	x-envoy-ratelimited, or Envoy's text             a refusal, with any code
//	  "local_rate_limited"
//	Unavailable with a google.rpc.QuotaFailure       a refusal
//	ENHANCE_YOUR_CALM of HTTP/2                      a refusal, except because of pings
//	ResourceExhausted because of a message's size    nothing
//	Unavailable, Unknown or Internal with a time     holds for that time, as 503 with Retry-After
//	the same without a time                          nothing: the API may be down
//	DeadlineExceeded, Canceled                       nothing: no answer came
//	any other end                                    a success
//
// A refusal holds the bucket for the longest of Retry-After, grpc-retry-pushback-ms and
// google.rpc.RetryInfo, or else until the reset that x-ratelimit-reset or RateLimit has. Without a
// time it holds for 1 s, doubled with each further one. Headers and trailers are read as package
// profile reads those of HTTP. They hold the bucket after a success, too, if nothing remains of a
// quota. [Pacer.MaxHold] bounds each hold. gRPC drops the headers of a gateway's response, with its
// Retry-After, if the content type is another than gRPC's.
//
// If an API refuses in words of its own, [Pacer.Profile] describes them. It reads a response of
// HTTP that has the metadata as headers, and the status that google/rpc/code.proto gives the code.
// Unknown and Internal are 503 there.
//
// # Retries
//
// gRPC repeats calls as a service config asks for it, and by itself those that no server has
// processed. The limiter admits these attempts like any other. With a queue as the limiter, an
// attempt after a refusal waits as long as the API asks. Without one, it fails with the
// ThrottledError. This service config repeats what was refused, and for one method what is
// unavailable:
//
//	{"methodConfig": [
//		{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "30s",
//			"backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}},
//		{"name": [{"service": "speech.Speech", "method": "Get"}], "retryPolicy": {"maxAttempts": 5,
//			"initialBackoff": "1s", "maxBackoff": "30s", "backoffMultiplier": 2,
//			"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}
//	]}
//
// List UNAVAILABLE only for idempotent methods: the API may have carried out the call. That leaves
// out a gateway's 429 and Envoy's refusals, unless Envoy has rate_limited_as_resource_exhausted.
// The queue's MaxWait and the call's deadline bound each wait, and maxAttempts, at most 5, the
// attempts. A negative grpc-retry-pushback-ms ends them.
//
// gRPC repeats a stream only before its first message. Here it repeats no stream whose client may
// send several messages. The retry interceptors of go-grpc-middleware 2.3 are paced as well, before
// and after the Pacer. But they return the messages of a repeated stream twice, ignore the
// pushback, and fail all streams of several client messages. Retries of the program and of Google
// Cloud's clients need nothing.
//
// # What this does not cover
//
//   - gRPC pauses between attempts even if the deadline comes first. The call then fails with
//     DeadlineExceeded.
//   - An attempt may be refused without a time while its message is being sent. If gRPC repeats
//     it, the bucket learns only of the last one.
//   - A call is admitted before it waits for a connection. Calls that wait for one together leave
//     together: [outbound.InFlight] bounds them.
package grpc
