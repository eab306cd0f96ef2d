package sdks

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
	listener := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///api",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithUnaryInterceptor(UnaryPacing(l)),
		grpc.WithStreamInterceptor(StreamPacing(l)),
	)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func bucket(t *testing.T, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewBucket("api", limits...)
	require.NoError(t, err)
	return b
}

// exhausted is an API's error for a call that it refuses.
func exhausted(t *testing.T, after time.Duration) error {
	s, err := status.New(codes.ResourceExhausted, "quota").WithDetails(
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

var calls = map[string]func(context.Context, grpc_health_v1.HealthClient) error{"unary": check, "stream": watch}

func TestCallsAndStreamsWithoutRoomDoNotGoOut(t *testing.T) {
	for name, call := range calls {
		h := &health{}
		c := dialed(t, h, bucket(t, outbound.Limit{Capacity: 2, LeakRate: 1.0 / 3600}))
		require.NoError(t, call(t.Context(), c), name)
		require.NoError(t, call(t.Context(), c), name)
		err := call(t.Context(), c)
		var full *outbound.ThrottledError
		require.ErrorAs(t, err, &full, name)
		require.Equal(t, codes.ResourceExhausted, status.Code(err), name)
		require.Equal(t, full.RetryAfter, retryIn(status.Convert(err)), name)
		require.Greater(t, full.RetryAfter, 50*time.Minute, name)
		require.EqualValues(t, 2, h.calls.Load(), name)
	}
}

func TestAnAPIsRetryInfoHoldsAllCallersOfTheBucket(t *testing.T) {
	for name, call := range calls {
		for after, want := range map[time.Duration]time.Duration{
			20 * time.Minute: 20 * time.Minute,
			300 * time.Hour:  time.Hour, // the longest wait that we believe
			-time.Hour:       time.Second,
			math.MaxInt64:    time.Hour,
		} {
			h := &health{end: exhausted(t, after)}
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

func TestOtherEndsHoldNobody(t *testing.T) {
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

func TestAStreamIsInProgressUntilItEnds(t *testing.T) {
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

func TestTheEndOfItsContextEndsAStream(t *testing.T) {
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

func TestTheEndOfAContextInAQueueIsItsStatus(t *testing.T) {
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

// away is a store that cannot be reached.
type away struct{}

func (away) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{}, store.ErrUnavailable
}

func TestALimiterThatIsAwayOrClosedIsUnavailable(t *testing.T) {
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
