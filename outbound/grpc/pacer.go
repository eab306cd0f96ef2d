package grpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Pacer asks a limiter before each attempt of a client's calls. Do not change its fields once it is
// in use.
type Pacer struct {
	// Limiter admits the calls and streams.
	Limiter outbound.Limiter
	// For returns another limiter for some methods, such as "/package.Service/Method". If it is nil,
	// or returns nil, Limiter admits the call.
	For func(method string) outbound.Limiter
	// Cost returns what a call costs. The request is that of a unary call, and nil for a stream. If
	// Cost is nil, each call costs outbound.Cost{1}.
	Cost func(method string, request any) outbound.Cost
	// MaxHold is the longest hold that one answer may cause. If it is zero or less, it is that of
	// [transport.Transport].
	MaxHold time.Duration
	// Profile reads the limits that the API reports in its metadata, as from headers of HTTP. It is
	// [profile.Generic] if it is nil.
	Profile *profile.Profile
}

// DialOptions returns the options for a client whose calls and streams the Pacer paces. They come
// before the other options, so that a call waits before other interceptors and credentials see it.
func (p *Pacer) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(p.unary), grpc.WithChainStreamInterceptor(p.stream),
		grpc.WithStatsHandler(attempts{p}), grpc.WithPerRPCCredentials(attempts{p}),
	}
}

// unary is a [grpc.UnaryClientInterceptor].
func (p *Pacer) unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c, err := p.begin(ctx, method, request)
	if err != nil {
		return err
	}
	defer func() { c.end(err) }() // also after a panic
	err = invoke(c.within(ctx), method, request, reply, cc, opts...)
	return c.result(err)
}

// stream is a [grpc.StreamClientInterceptor].
func (p *Pacer) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c, err := p.begin(ctx, method, nil)
	if err != nil {
		return nil, err
	}
	opts = append(opts[:len(opts):len(opts)], grpc.OnFinish(c.end))
	s, err := open(c.within(ctx), desc, cc, method, opts...)
	if err != nil {
		c.end(err)
		return nil, c.result(err)
	}
	if desc.ClientStreams {
		// gRPC would repeat an attempt that has failed in SendMsg before its end is known, and report
		// its end as a success. It repeats no stream whose context is known.
		s.Context()
	}
	return &stream{s, c}, nil
}

// begin admits the first attempt of a call.
func (p *Pacer) begin(ctx context.Context, method string, request any) (*call, error) {
	c := &call{pacer: p, limiter: p.Limiter, cost: outbound.Cost{1}}
	if p.For != nil {
		if l := p.For(method); l != nil {
			c.limiter = l
		}
	}
	if p.Cost != nil {
		c.cost = p.Cost(method, request)
	}
	var err error
	if c.unsent, err = c.admit(ctx); err != nil {
		return nil, refusal{err}
	}
	return c, nil
}

// stream is a stream that may end with an error of the limiter.
type stream struct {
	grpc.ClientStream
	call *call
}

func (s *stream) SendMsg(m any) error { return s.call.result(s.ClientStream.SendMsg(m)) }
func (s *stream) RecvMsg(m any) error { return s.call.result(s.ClientStream.RecvMsg(m)) }

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
