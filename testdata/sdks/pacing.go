package sdks

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// UnaryPacing makes the limiter admit each unary call. gRPC's own retries, which a service
// config asks for, happen below it and are free: see grpc.WithDisableRetry.
func UnaryPacing(l outbound.Limiter) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		permit, err := l.Acquire(ctx, outbound.Cost{1})
		if err != nil {
			return refusal{err}
		}
		defer permit.Done()
		err = invoke(ctx, method, req, reply, cc, opts...)
		report(&permit, err)
		return err
	}
}

// StreamPacing makes the limiter admit each stream. A stream is in progress until it ends
// with an error or io.EOF, or until its context ends. Its messages are free. StreamPacing
// learns of the end by grpc.OnFinish, which gRPC calls experimental.
func StreamPacing(l outbound.Limiter) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		permit, err := l.Acquire(ctx, outbound.Cost{1})
		if err != nil {
			return nil, refusal{err}
		}
		var once sync.Once
		end := func(err error) { once.Do(func() { report(&permit, err) }) }
		s, err := stream(ctx, desc, cc, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(end))...)
		if err != nil {
			end(err)
		}
		return s, err
	}
}

// report tells the limiter how a call has ended.
func report(permit *outbound.Permit, err error) {
	s := status.Convert(err)
	switch s.Code() {
	case codes.ResourceExhausted:
		if !strings.Contains(s.Message(), "larger than max") { // gRPC's own text about a message
			permit.Refused(min(retryIn(s), time.Hour))
		}
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		permit.Failed()
	}
	permit.Done()
}

// retryIn returns the wait that the API asks for; 0: it asks for none.
func retryIn(s *status.Status) time.Duration {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// refusal is a limiter's error with the status that an API would give: Unavailable if its
// store is away or its queue closed. errors.As finds the *outbound.ThrottledError.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func (r refusal) GRPCStatus() *status.Status {
	var full *outbound.ThrottledError
	var store *outbound.StoreError
	switch {
	case errors.As(r.error, &full):
	case errors.As(r.error, &store), errors.Is(r.error, queue.ErrClosed):
		return status.New(codes.Unavailable, r.Error())
	default:
		return status.FromContextError(r.error)
	}
	s := status.New(codes.ResourceExhausted, r.Error())
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(full.RetryAfter)}); err == nil {
		return with
	}
	return s
}
