package grpc

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
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// Pacer asks a limiter before each call of a client. Do not change its fields once it is in use.
type Pacer struct {
	// Limiter admits the calls and streams.
	Limiter outbound.Limiter
	// For returns another limiter for some methods, such as "/package.Service/Method". If it is nil,
	// or returns nil, Limiter admits the call.
	For func(method string) outbound.Limiter
	// Cost returns what a call costs. The request is that of a unary call, and nil for a stream. If
	// Cost is nil, each call costs outbound.Cost{1}.
	Cost func(method string, request any) outbound.Cost
	// MaxHold is the longest hold that one answer may cause. If it is zero or less, it is 1 h.
	MaxHold time.Duration
}

// DialOptions returns the options for a client whose calls and streams the Pacer paces. They
// disable gRPC's own retries.
func (p *Pacer) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(p.Unary), grpc.WithChainStreamInterceptor(p.Stream), grpc.WithDisableRetry()}
}

// Unary is a [grpc.UnaryClientInterceptor].
func (p *Pacer) Unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var permit outbound.Permit
	if err := p.acquire(ctx, &permit, method, request); err != nil {
		return err
	}
	defer permit.Done() // also after a panic
	err := invoke(ctx, method, request, reply, cc, opts...)
	p.report(&permit, err)
	return err
}

// Stream is a [grpc.StreamClientInterceptor]. It learns of the stream's end by [grpc.OnFinish],
// which gRPC calls experimental.
func (p *Pacer) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	permit := new(outbound.Permit)
	if err := p.acquire(ctx, permit, method, nil); err != nil {
		return nil, err
	}
	var once sync.Once
	end := func(err error) { once.Do(func() { p.report(permit, err) }) }
	s, err := stream(ctx, desc, cc, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(end))...)
	if err != nil {
		end(err)
	}
	return s, err
}

func (p *Pacer) acquire(ctx context.Context, permit *outbound.Permit, method string, request any) error {
	limiter, cost := p.Limiter, outbound.Cost{1}
	if p.For != nil {
		if l := p.For(method); l != nil {
			limiter = l
		}
	}
	if p.Cost != nil {
		cost = p.Cost(method, request)
	}
	if err := permit.AcquireIn(ctx, limiter, cost); err != nil {
		return refusal{err}
	}
	return nil
}

// report reports how a call has ended, and ends it.
func (p *Pacer) report(permit *outbound.Permit, err error) {
	defer permit.Done()
	most := p.MaxHold
	if most <= 0 {
		most = time.Hour
	}
	s := status.Convert(err)
	wait := min(retryIn(s), most)
	switch s.Code() {
	case codes.ResourceExhausted:
		if wait <= 0 && isLocal(s.Message()) {
			permit.Failed()
			return
		}
		permit.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: wait, MaxWait: most, Reason: "rate"})
	case codes.Unavailable:
		permit.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: wait})
		permit.Failed()
	case codes.DeadlineExceeded, codes.Canceled:
		permit.Failed()
	}
}

// isLocal reports whether gRPC itself has refused a message because of its size.
func isLocal(text string) bool {
	return strings.Contains(text, "larger than max") || strings.Contains(text, "message too large")
}

// retryIn returns the wait that the API asks for, or 0.
func retryIn(s *status.Status) time.Duration {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// refusal is a limiter's error with a status.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// GRPCStatus returns the status that an API would return.
func (r refusal) GRPCStatus() *status.Status {
	_, failed := errors.AsType[*outbound.StoreError](r.error)
	full, throttled := errors.AsType[*outbound.ThrottledError](r.error)
	switch {
	case throttled:
		s := status.New(codes.ResourceExhausted, r.Error())
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(full.RetryAfter)}); err == nil {
			return with
		}
		return s
	case failed, errors.Is(r.error, store.ErrUnavailable), errors.Is(r.error, queue.ErrClosed):
		return status.New(codes.Unavailable, r.Error())
	case errors.Is(r.error, outbound.ErrInvalid), errors.Is(r.error, outbound.ErrTooLarge):
		return status.New(codes.InvalidArgument, r.Error())
	}
	return status.FromContextError(r.error)
}
