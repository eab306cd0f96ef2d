// Package grpc paces the calls and streams of a gRPC client to what an API allows.
//
//	bucket := outbound.Must(outbound.NewBucket("speech", outbound.PerSecond(10)))
//	pacer := &pace.Pacer{Limiter: queue.New(bucket, queue.Config{})} // pace is outbound/grpc
//	conn, err := grpc.NewClient(target, append(pacer.DialOptions(), options...)...)
//
// The limiter admits each unary call and each stream before it is sent. In a job of outbound.Do,
// Wrap or Each with the same bucket, the job's permit pays for the first call. A stream is in
// flight until it ends with an error or io.EOF, or until its context ends; its messages cost
// nothing.
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
// # What the end of a call changes
//
// The end of a call adjusts the bucket that admitted it, for all processes that share the bucket:
//
//	ResourceExhausted                                a refusal: holds for the RetryInfo, or for 1 s
//	ResourceExhausted of gRPC itself                 nothing: a message is larger than a maximum
//	Unavailable with a RetryInfo                     holds for that time, as a 503 with Retry-After
//	Unavailable, DeadlineExceeded, Canceled          nothing: no answer came
//	any other end                                    a success
//
// [Pacer.MaxHold] bounds each hold.
//
// # Retries
//
// gRPC retries by itself if a service config asks for it. Those retries are below the interceptors,
// where no limiter is asked, so [Pacer.DialOptions] disables them. Retries above the interceptors
// ask the limiter for each attempt. These are retries of the program, of Google Cloud's clients,
// and of interceptors whose dial option comes before those of the Pacer. gRPC also repeats a call
// that no server has processed. That stays enabled, and costs nothing.
package grpc
