package grpc_test

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/dripfeed/dripfeed/outbound"
	pace "github.com/dripfeed/dripfeed/outbound/grpc"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// serving starts a server, and returns the options of its clients.
func serving(serve func(net.Listener) error) []grpc.DialOption {
	listener := bufconn.Listen(1 << 16)
	go func() { _ = serve(listener) }()
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}
}

// api is a server of a test.
type api interface {
	serve() (options []grpc.DialOption, stop func())
}

// client is a client of an api.
type client struct {
	grpc_health_v1.HealthClient
	conn *grpc.ClientConn
}

// dialed returns a client of the API, paced by p.
func dialed(t *testing.T, to api, p *pace.Pacer, more ...grpc.DialOption) client {
	options, stop := to.serve()
	t.Cleanup(stop)
	conn, err := grpc.NewClient("passthrough:///api", slices.Concat(p.DialOptions(), options, more)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return client{grpc_health_v1.NewHealthClient(conn), conn}
}

func bucket(limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("api", limits...))
}

// statesOf returns the states of a bucket's limits.
func statesOf(t *testing.T, b *outbound.Bucket) []outbound.State {
	t.Helper()
	states, err := b.States(t.Context())
	require.NoError(t, err)
	return states
}

// throttled returns the limiter's error in that of a call.
func throttled(t *testing.T, err error) *outbound.ThrottledError {
	t.Helper()
	var full *outbound.ThrottledError
	require.ErrorAs(t, err, &full)
	return full
}

// check makes a unary call.
func check(ctx context.Context, c client) error {
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// watch reads a stream to its end.
func watch(ctx context.Context, c client) error {
	s, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil { // io.EOF, too, if the server has reset the stream before its message was sent
		return err
	}
	got := 0
	for ; err == nil; got++ {
		_, err = s.Recv()
	}
	if err == io.EOF && got > 1 { // without a message it is how gRPC 1.85 ends some streams that the server has reset
		return nil
	}
	return err
}

// send sends a stream of messages, as long as the API takes them.
func send(ctx context.Context, c client) error {
	s, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Test/Send")
	if err != nil {
		return err
	}
	for range 3 {
		if err = s.SendMsg(&grpc_health_v1.HealthCheckRequest{}); err != nil {
			break
		}
	}
	if err == nil {
		err = s.CloseSend()
	}
	for err == nil || err == io.EOF {
		if err = s.RecvMsg(new(grpc_health_v1.HealthCheckResponse)); err == io.EOF {
			return nil
		}
	}
	return err
}

var calls = map[string]func(context.Context, client) error{"unary": check, "stream": watch, "client's stream": send}

// away is a store that is unavailable.
type away struct{}

func (away) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

// A call that is not admitted has the limiter's error with a status, and is not sent.
func TestPacer_RefusalHasTheStatusOfItsCause(t *testing.T) {
	held, closed := bucket(outbound.PerSecond(1)), queue.New(bucket(outbound.PerSecond(1)), queue.Config{})
	require.NoError(t, held.Hold(t.Context(), time.Hour))
	closed.Close()
	shared, err := outbound.NewSharedBucket(away{}, "api", outbound.PerSecond(1))
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		limiter outbound.Limiter
		cost    float64
		ctx     context.Context
		want    error
		code    codes.Code
	}{
		"held":        {held, 1, t.Context(), outbound.ErrThrottled, codes.ResourceExhausted},
		"store":       {shared, 1, t.Context(), store.ErrUnavailable, codes.Unavailable},
		"closed":      {closed, 1, t.Context(), queue.ErrClosed, codes.Unavailable},
		"too large":   {held, 2, t.Context(), outbound.ErrTooLarge, codes.InvalidArgument},
		"invalid":     {held, -1, t.Context(), outbound.ErrInvalid, codes.InvalidArgument},
		"cancelled":   {queue.New(held, queue.Config{}), 1, cancelled, context.Canceled, codes.Canceled},
		"other error": {limiter(func() error { return io.ErrUnexpectedEOF }), 1, t.Context(), io.ErrUnexpectedEOF, codes.Unknown},
	} {
		for kind, call := range calls {
			t.Run(name+", "+kind, func(t *testing.T) {
				sent := int64(0)
				p := &pace.Pacer{Limiter: test.limiter, Cost: func(string, any) outbound.Cost { return outbound.Cost{test.cost} }}
				err := call(test.ctx, dialed(t, server(func(_ grpc.ServerStream, n int64) error { sent = n; return nil }), p))
				require.ErrorIs(t, err, test.want)
				s := status.Convert(err)
				require.Equal(t, test.code, s.Code())
				require.Zero(t, sent)
				if test.code == codes.ResourceExhausted {
					full := throttled(t, err)
					require.Greater(t, full.RetryAfter, 50*time.Minute)
					require.Equal(t, full.RetryAfter, s.Details()[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration())
				}
			})
		}
	}
}

// A call without an answer is no success, so a refusal after it does not slow the bucket.
func TestPacer_CallWithoutAnswerIsNoSuccess(t *testing.T) {
	for code, success := range map[codes.Code]bool{codes.Unavailable: false, codes.DeadlineExceeded: false, codes.Canceled: false, codes.NotFound: true} {
		for kind, call := range calls {
			b, end := bucket(outbound.PerSecond(1e6)), codes.OK
			c := dialed(t, server(func(grpc.ServerStream, int64) error { return status.Error(end, "no") }), &pace.Pacer{Limiter: b})
			for _, end = range []codes.Code{code, codes.ResourceExhausted} {
				require.Equal(t, end, status.Code(call(t.Context(), c)), kind)
			}
			require.Equal(t, success, statesOf(t, b)[0].Speed < 1, "%s, %v", kind, code)
		}
	}
}

// gRPC itself returns ResourceExhausted for a message that is too large, which is no refusal.
func TestPacer_TooLargeMessageIsNoRefusal(t *testing.T) {
	for want, limit := range map[string]grpc.CallOption{
		"trying to send message larger": grpc.MaxCallSendMsgSize(1), "received message larger": grpc.MaxCallRecvMsgSize(1),
	} {
		b := bucket(outbound.PerSecond(1e6), outbound.InFlight(1))
		c := dialed(t, works, &pace.Pacer{Limiter: b}, grpc.WithDefaultCallOptions(limit))
		_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "name"})
		require.ErrorContains(t, err, want)
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		states := statesOf(t, b)
		require.Zero(t, states[0].HeldFor)
		require.Zero(t, states[1].Level)
	}
}

// A stream is in flight until its end, or until that of its context.
func TestPacer_StreamIsInFlightUntilItEnds(t *testing.T) {
	b := bucket(outbound.InFlight(1))
	c := dialed(t, server(func(s grpc.ServerStream, n int64) error {
		if n%2 == 1 { // each second call is unary
			return s.SendMsg(&grpc_health_v1.HealthCheckResponse{})
		}
		return nil
	}), &pace.Pacer{Limiter: queue.New(b, queue.Config{})})
	for _, read := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		for range 2 {
			_, err = s.Recv()
			require.NoError(t, err)
			require.EqualValues(t, 1, statesOf(t, b)[0].Level)
		}
		if read {
			_, err = s.Recv()
			require.ErrorIs(t, err, io.EOF)
		}
		cancel()
		soon, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, check(soon, c), "a call that waits in the queue until then")
		cancel()
	}
}

// The method and the request decide what a call costs, and who admits it.
func TestPacer_CostAndLimiterByMethod(t *testing.T) {
	b, other := bucket(outbound.Window(10, time.Hour)), bucket(outbound.PerHour(1))
	c := dialed(t, works, &pace.Pacer{
		Limiter: b,
		For: func(method string) outbound.Limiter {
			if method == grpc_health_v1.Health_Watch_FullMethodName {
				return other
			}
			return nil
		},
		Cost: func(method string, request any) outbound.Cost {
			if method == grpc_health_v1.Health_Check_FullMethodName {
				return outbound.Cost{float64(len(request.(*grpc_health_v1.HealthCheckRequest).GetService()))}
			}
			require.Nil(t, request)
			return outbound.Cost{1}
		},
	})
	_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "seven77"})
	require.NoError(t, err)
	require.NoError(t, watch(t.Context(), c))
	require.ErrorIs(t, watch(t.Context(), c), outbound.ErrThrottled)
	require.EqualValues(t, 3, statesOf(t, b)[0].Remaining)
}

// The permit of a job pays for its first call.
func TestPacer_JobPaysForItsFirstCall(t *testing.T) {
	b := bucket(outbound.Window(2, time.Hour))
	c := dialed(t, works, &pace.Pacer{Limiter: b})
	require.NoError(t, outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error {
		require.NoError(t, check(ctx, c))
		return check(ctx, c)
	}))
	require.ErrorIs(t, check(t.Context(), c), outbound.ErrThrottled)
}
