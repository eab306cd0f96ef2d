package grpc_test

import (
	"context"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
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
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dripfeed/dripfeed/outbound"
	pace "github.com/dripfeed/dripfeed/outbound/grpc"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// health is an API with a unary call and a stream. The stream sends two answers. Both
// end with the test's error.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	calls atomic.Int64
	end   error
	size  int // size of the names in List
}

func (h *health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	h.calls.Add(1)
	return &grpc_health_v1.HealthCheckResponse{}, h.end
}

func (h *health) List(context.Context, *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	return &grpc_health_v1.HealthListResponse{
		Statuses: map[string]*grpc_health_v1.HealthCheckResponse{strings.Repeat("x", h.size): {}},
	}, nil
}

func (h *health) Watch(_ *grpc_health_v1.HealthCheckRequest, s grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	h.calls.Add(1)
	for range 2 {
		if err := s.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
			return err
		}
	}
	return h.end
}

// dialed returns a client of the API, paced by the limiter.
func dialed(t *testing.T, h *health, l outbound.Limiter) grpc_health_v1.HealthClient {
	return connected(t, h, (&pace.Pacer{Limiter: l}).DialOptions()...)
}

func connected(t *testing.T, h *health, options ...grpc.DialOption) grpc_health_v1.HealthClient {
	listener := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///api", append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func bucket(t *testing.T, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewBucket("api", limits...)
	require.NoError(t, err)
	return b
}

// asking is an API's error that asks for a wait.
func asking(t *testing.T, code codes.Code, after time.Duration) error {
	s, err := status.New(code, "quota").WithDetails(
		&errdetails.ErrorInfo{Reason: "RATE_LIMIT_EXCEEDED"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(after)},
	)
	require.NoError(t, err)
	return s.Err()
}

// check makes a unary call.
func check(ctx context.Context, c grpc_health_v1.HealthClient) error {
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// watch reads a stream to its end.
func watch(ctx context.Context, c grpc_health_v1.HealthClient) error {
	s, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	for err == nil {
		_, err = s.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// retryIn returns the wait that an error asks for.
func retryIn(t *testing.T, err error) time.Duration {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	t.Fatalf("%v has no RetryInfo", err)
	return 0
}

var calls = map[string]func(context.Context, grpc_health_v1.HealthClient) error{"unary": check, "stream": watch}

func TestPacer_RefusesOverTheLimit(t *testing.T) {
	for name, call := range calls {
		h := &health{}
		c := dialed(t, h, bucket(t, outbound.Limit{Capacity: 2, LeakRate: 1.0 / 3600}))
		require.NoError(t, call(t.Context(), c), name)
		require.NoError(t, call(t.Context(), c), name)
		err := call(t.Context(), c)
		var full *outbound.ThrottledError
		require.ErrorAs(t, err, &full, name)
		require.Equal(t, codes.ResourceExhausted, status.Code(err), name)
		require.Equal(t, full.RetryAfter, retryIn(t, err), name)
		require.Greater(t, full.RetryAfter, 50*time.Minute, name)
		require.EqualValues(t, 2, h.calls.Load(), name)
	}
}

func TestPacer_RetryInfoHoldsTheBucket(t *testing.T) {
	for name, call := range calls {
		for after, want := range map[time.Duration]time.Duration{
			20 * time.Minute: 20 * time.Minute,
			300 * time.Hour:  time.Hour, // the longest wait that we believe
			-time.Hour:       time.Second,
			math.MaxInt64:    time.Hour,
		} {
			h := &health{end: asking(t, codes.ResourceExhausted, after)}
			b := bucket(t, outbound.PerSecond(1e6))
			c := dialed(t, h, b)
			require.Equal(t, codes.ResourceExhausted, status.Code(call(t.Context(), c)), name)
			state, err := b.State(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, state.HeldFor, want, name)
			if want > time.Second {
				require.Greater(t, state.HeldFor, want-10*time.Minute, name)
				require.ErrorIs(t, call(t.Context(), c), outbound.ErrThrottled, name)
				require.EqualValues(t, 1, h.calls.Load(), name)
			}
		}
	}
}

func TestPacer_OtherEndsHoldNothing(t *testing.T) {
	for name, call := range calls {
		for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.NotFound} {
			b := bucket(t, outbound.PerSecond(1e6), outbound.InFlight(1))
			c := dialed(t, &health{end: status.Error(code, "no")}, b)
			require.Equal(t, code, status.Code(call(t.Context(), c)), name)
			idle(t, b)
		}
	}
	// gRPC itself returns ResourceExhausted for a message that is too large.
	b := bucket(t, outbound.PerSecond(1e6), outbound.InFlight(1))
	_, err := dialed(t, &health{size: 5 << 20}, b).List(t.Context(), &grpc_health_v1.HealthListRequest{})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	idle(t, b)
}

// idle asserts that nothing is held or in progress.
func idle(t *testing.T, b *outbound.Bucket) {
	t.Helper()
	states, err := b.States(t.Context())
	require.NoError(t, err)
	require.Zero(t, states[0].HeldFor)
	require.Zero(t, states[1].Level)
}

func TestPacer_StreamIsInFlightUntilItEnds(t *testing.T) {
	b := bucket(t, outbound.InFlight(1))
	c := dialed(t, &health{}, b)
	s, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	for range 2 {
		_, err = s.Recv()
		require.NoError(t, err)
		require.ErrorIs(t, check(t.Context(), c), outbound.ErrThrottled)
	}
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, check(t.Context(), c))
}

func TestPacer_ContextEndsStream(t *testing.T) {
	q := queue.New(bucket(t, outbound.InFlight(1)), queue.Config{})
	c := dialed(t, &health{}, q)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	cancel()
	require.NoError(t, check(t.Context(), c), "which waits in the queue until then")
}

func TestPacer_ContextEndsWait(t *testing.T) {
	for name, call := range calls {
		q := queue.New(bucket(t, outbound.InFlight(1)), queue.Config{})
		c := dialed(t, &health{}, q)
		_, err := c.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}) // never read
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = call(ctx, c)
		require.ErrorIs(t, err, context.Canceled, name)
		require.Equal(t, codes.Canceled, status.Code(err), name)
	}
}

// Unavailable with a RetryInfo holds the bucket, and does not slow it.
func TestPacer_UnavailableWithRetryInfoHolds(t *testing.T) {
	for name, call := range calls {
		b := bucket(t, outbound.PerSecond(1e6))
		c := dialed(t, &health{end: asking(t, codes.Unavailable, 20*time.Minute)}, b)
		require.Equal(t, codes.Unavailable, status.Code(call(t.Context(), c)), name)
		state, err := b.State(t.Context())
		require.NoError(t, err)
		require.Greater(t, state.HeldFor, 10*time.Minute, name)
		require.EqualValues(t, 1, state.Speed, name)
	}
}

// A refusal slows the bucket, as a 429 does.
func TestPacer_RefusalAfterSuccessSlows(t *testing.T) {
	h := &health{}
	b := bucket(t, outbound.PerSecond(1e6))
	c := dialed(t, h, b)
	require.NoError(t, check(t.Context(), c))
	h.end = asking(t, codes.ResourceExhausted, time.Hour)
	require.Error(t, check(t.Context(), c))
	state, err := b.State(t.Context())
	require.NoError(t, err)
	require.Less(t, state.Speed, 1.0)
}

// The longest hold is MaxHold.
func TestPacer_MaxHold(t *testing.T) {
	b := bucket(t, outbound.PerSecond(1e6))
	h := &health{end: asking(t, codes.ResourceExhausted, time.Hour)}
	c := connected(t, h, (&pace.Pacer{Limiter: b, MaxHold: time.Minute}).DialOptions()...)
	require.Error(t, check(t.Context(), c))
	state, err := b.State(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, state.HeldFor, time.Minute)
	require.Greater(t, state.HeldFor, time.Duration(0))
}

// The method and the request decide what a call costs, and who admits it.
func TestPacer_CostAndLimiterByMethod(t *testing.T) {
	b, other := bucket(t, outbound.Window(10, time.Hour)), bucket(t, outbound.PerHour(1))
	p := &pace.Pacer{
		Limiter: b,
		For: func(method string) outbound.Limiter {
			if method == grpc_health_v1.Health_List_FullMethodName {
				return other
			}
			return nil
		},
		Cost: func(method string, request any) outbound.Cost {
			if r, ok := request.(*grpc_health_v1.HealthCheckRequest); ok && method == grpc_health_v1.Health_Check_FullMethodName {
				return outbound.Cost{float64(len(r.GetService()))}
			}
			require.True(t, request == nil || method == grpc_health_v1.Health_List_FullMethodName)
			return outbound.Cost{1}
		},
	}
	c := connected(t, &health{}, p.DialOptions()...)
	_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "seven77"})
	require.NoError(t, err)
	require.NoError(t, watch(t.Context(), c))
	_, err = c.List(t.Context(), &grpc_health_v1.HealthListRequest{})
	require.NoError(t, err)
	_, err = c.List(t.Context(), &grpc_health_v1.HealthListRequest{})
	require.ErrorIs(t, err, outbound.ErrThrottled)
	state, err := b.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, state.Remaining)
	_, err = c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "more than the capacity"})
	require.ErrorIs(t, err, outbound.ErrTooLarge)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// The permit of a job pays for its first call.
func TestPacer_JobPaysForItsFirstCall(t *testing.T) {
	b := bucket(t, outbound.Window(2, time.Hour))
	c := dialed(t, &health{}, b)
	require.NoError(t, outbound.Do(t.Context(), b, outbound.Cost{1}, func(ctx context.Context) error {
		if err := check(ctx, c); err != nil {
			return err
		}
		return check(ctx, c)
	}))
	require.ErrorIs(t, check(t.Context(), c), outbound.ErrThrottled)
}

const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["INTERNAL"]}}]}`

// gRPC's own retries ask no limiter, so they are off. Retries above the interceptors ask it.
func TestPacer_EachAttemptPays(t *testing.T) {
	for name, call := range calls {
		h := &health{end: status.Error(codes.Internal, "broken")}
		p := &pace.Pacer{Limiter: bucket(t, outbound.Window(2, time.Hour))}
		c := connected(t, h, append(p.DialOptions(), grpc.WithDefaultServiceConfig(retries))...)
		require.Equal(t, codes.Internal, status.Code(call(t.Context(), c)), name)
		require.EqualValues(t, 1, h.calls.Load(), name)
	}
	h := &health{end: status.Error(codes.Internal, "broken")}
	p := &pace.Pacer{Limiter: bucket(t, outbound.Window(2, time.Hour))}
	again := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		for range 4 {
			if err = invoke(ctx, method, req, reply, cc, opts...); err == nil {
				break
			}
		}
		return err
	}
	c := connected(t, h, append([]grpc.DialOption{grpc.WithChainUnaryInterceptor(again)}, p.DialOptions()...)...)
	require.ErrorIs(t, check(t.Context(), c), outbound.ErrThrottled)
	require.EqualValues(t, 2, h.calls.Load())
}

// away is a store that cannot be reached.
type away struct{}

func (away) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

func TestPacer_StoreOrQueueIsUnavailable(t *testing.T) {
	shared, err := outbound.NewSharedBucket(away{}, "api", outbound.PerSecond(1))
	require.NoError(t, err)
	closed := queue.New(bucket(t, outbound.PerSecond(1)), queue.Config{})
	closed.Close()
	for want, l := range map[error]outbound.Limiter{store.ErrUnavailable: shared, queue.ErrClosed: closed} {
		for name, call := range calls {
			h := &health{}
			err := call(t.Context(), dialed(t, h, l))
			require.ErrorIs(t, err, want, name)
			require.Equal(t, codes.Unavailable, status.Code(err), name)
			require.Zero(t, h.calls.Load(), name)
		}
	}
}
