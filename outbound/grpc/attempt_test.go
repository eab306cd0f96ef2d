package grpc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dripfeed/dripfeed/outbound"
	pace "github.com/dripfeed/dripfeed/outbound/grpc"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// server is an API of gRPC whose methods all do the same. It gets the number of the call, from 1. It reads a message
// before, and without an error it sends one.
type server func(s grpc.ServerStream, n int64) error

func (f server) serve() (options []grpc.DialOption, stop func()) {
	var calls atomic.Int64
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		n := calls.Add(1)
		if err := s.RecvMsg(new(grpc_health_v1.HealthCheckRequest)); err != nil {
			return err
		}
		if err := f(s, n); err != nil {
			return err
		}
		return s.SendMsg(&grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING})
	}))
	return serving(s.Serve), s.Stop
}

// failing is a server that fails the first attempts.
func failing(attempts int64, err error) server {
	return func(_ grpc.ServerStream, n int64) error {
		if n > attempts {
			return nil
		}
		return err
	}
}

// works is a server whose calls succeed.
var works = failing(0, nil)

// everything is a service config that repeats all methods.
var everything = grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "1s",
	"maxBackoff": "30s", "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL"]}}]}`)

// repeated are the kinds of calls that gRPC repeats.
var repeated = map[string]func(context.Context, client) error{"unary": check, "stream": watch}

// exhausted returns a refusal that asks to wait.
func exhausted(wait time.Duration) error {
	s, _ := status.New(codes.ResourceExhausted, "no").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	return s.Err()
}

// bubble runs a scenario in virtual time. Its name says what holds.
func bubble(t *testing.T, name string, scenario func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, scenario) })
}

// inTime runs a scenario in virtual time for each kind of call that gRPC repeats.
func inTime(t *testing.T, name string, scenario func(t *testing.T, call func(context.Context, client) error)) {
	for kind, call := range repeated {
		bubble(t, name+", "+kind, func(t *testing.T) { scenario(t, call) })
	}
}

// Each attempt of a call that gRPC repeats is paced.
func TestAttempt_EachIsPaced(t *testing.T) {
	inTime(t, "Each attempt of a call costs as much as the call. The call fails with the limiter's error if it refuses an attempt", func(t *testing.T, call func(context.Context, client) error) {
		var sent int64
		c := dialed(t, server(func(_ grpc.ServerStream, n int64) error {
			sent = n
			return status.Error(codes.Internal, "broken")
		}), &pace.Pacer{
			Limiter: bucket(outbound.Window(6, time.Hour), outbound.InFlight(1)),
			Cost:    func(string, any) outbound.Cost { return outbound.Cost{2} },
		}, everything)
		err := call(t.Context(), c)
		require.Greater(t, throttled(t, err).RetryAfter, 50*time.Minute)
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.EqualValues(t, 3, sent)
	})
	inTime(t, "A call whose deadline comes before the time that the API asks for fails with the limiter's error, and sends nothing more", func(t *testing.T, call func(context.Context, client) error) {
		var sent int64
		b := bucket(outbound.PerSecond(50), outbound.InFlight(1))
		c := dialed(t, server(func(_ grpc.ServerStream, n int64) error {
			sent = n
			return exhausted(20 * time.Second)
		}), &pace.Pacer{Limiter: queue.New(b, queue.Config{})}, everything)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, throttled(t, call(ctx, c)).Err, context.DeadlineExceeded)
		require.Less(t, time.Since(began), 2*time.Second)
		require.EqualValues(t, 1, sent)
		require.Zero(t, statesOf(t, b)[1].Level, "calls in flight")
	})
	inTime(t, "gRPC repeats by itself what the server has not processed. Each such attempt asks the limiter, too", func(t *testing.T, call func(context.Context, client) error) {
		api := &frames{answer: func(to *http2.Framer, stream uint32) bool {
			return to.WriteRSTStream(stream, http2.ErrCodeRefusedStream) != nil
		}}
		c := dialed(t, api, &pace.Pacer{Limiter: bucket(outbound.Window(7, time.Hour))})
		for range 3 {
			require.Error(t, call(t.Context(), c))
		}
		require.ErrorIs(t, call(t.Context(), c), outbound.ErrThrottled)
		require.EqualValues(t, 7, api.calls.Load())
	})
	inTime(t, "An attempt that was admitted and not sent leaves its permit to the next one", func(t *testing.T, call func(context.Context, client) error) {
		asked, broken := 0, false
		b := bucket(outbound.Window(10, time.Hour), outbound.InFlight(1))
		c := dialed(t, works, &pace.Pacer{Limiter: b}, everything, grpc.WithPerRPCCredentials(credentials(func() error {
			if asked++; broken || asked%3 != 0 {
				return status.Error(codes.Unavailable, "no token")
			}
			return nil
		})))
		require.NoError(t, call(t.Context(), c))
		states := statesOf(t, b)
		require.EqualValues(t, 9, states[0].Remaining)
		require.Zero(t, states[1].Level)
		broken = true // the call ends without an attempt that was sent
		require.Equal(t, codes.Unavailable, status.Code(call(t.Context(), c)))
		require.Zero(t, statesOf(t, b)[1].Level)
	})
	inTime(t, "Two pacers of one client, such as one for a project and one for all, both admit each attempt", func(t *testing.T, call func(context.Context, client) error) {
		inner, outer := bucket(outbound.Window(10, time.Hour)), bucket(outbound.Window(10, time.Hour))
		c := dialed(t, failing(2, status.Error(codes.Unavailable, "no")), &pace.Pacer{Limiter: outer}, append((&pace.Pacer{Limiter: inner}).DialOptions(), everything)...)
		require.NoError(t, call(t.Context(), c))
		for _, b := range []*outbound.Bucket{inner, outer} {
			require.EqualValues(t, 7, statesOf(t, b)[0].Remaining)
		}
	})
	inTime(t, "A call that an interceptor inside fails, before gRPC has seen it, is in flight no more and no success: a second refusal in a row holds the bucket for 2 s", func(t *testing.T, call func(context.Context, client) error) {
		b := bucket(outbound.Window(10, time.Hour), outbound.InFlight(1))
		no := errors.New("no")
		c := dialed(t, works, &pace.Pacer{Limiter: b},
			grpc.WithChainUnaryInterceptor(func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
				return no
			}), grpc.WithChainStreamInterceptor(func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
				return nil, no
			}))
		refuse := func() time.Duration {
			permit, err := b.Acquire(t.Context(), outbound.Cost{1})
			require.NoError(t, err)
			permit.Refused(0)
			permit.Done()
			state := statesOf(t, b)[0]
			time.Sleep(state.HeldFor)
			return state.HeldFor
		}
		require.Equal(t, time.Second, refuse())
		require.ErrorIs(t, call(t.Context(), c), no)
		require.Equal(t, 2*time.Second, refuse())
	})
}

// Calls to an API with less than the expected limit wait in the queue as long as it asks, and all succeed with few
// further attempts: a refusal reaches the calls that have not left.
func TestAttempt_ThousandCallsWaitAsLongAsAsked(t *testing.T) {
	for _, wait := range []time.Duration{time.Second, 10 * time.Second} {
		bubble(t, wait.String(), func(t *testing.T) {
			var mu sync.Mutex
			var window, held time.Time
			var inWindow, refused, early int
			c := dialed(t, server(func(grpc.ServerStream, int64) error {
				mu.Lock()
				defer mu.Unlock()
				if time.Now().Before(held) {
					early++
				}
				if time.Since(window) >= time.Second {
					window, inWindow = time.Now(), 0
				}
				if inWindow++; inWindow <= 40 {
					return nil
				}
				refused++
				held = time.Now().Add(wait)
				return exhausted(wait)
			}), &pace.Pacer{Limiter: queue.New(bucket(outbound.PerSecond(50)), queue.Config{})}, everything)
			var wg sync.WaitGroup
			var failed atomic.Int64
			for range 1000 {
				wg.Go(func() {
					if check(t.Context(), c) != nil {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			require.Zero(t, failed.Load())
			require.Zero(t, early)
			require.Positive(t, refused)
			require.Less(t, refused, 10)
		})
	}
}

// The server's pushback decides whether and when a call is repeated (gRFC A6).
func TestAttempt_PushbackDecides(t *testing.T) {
	for pushback, attempts := range map[string]int64{"-1": 1, "x": 1, "3000": 2} {
		inTime(t, pushback, func(t *testing.T, call func(context.Context, client) error) {
			var last int64
			var at []time.Time
			c := dialed(t, server(func(s grpc.ServerStream, n int64) error {
				at, last = append(at, time.Now()), n
				if n == 2 {
					return nil
				}
				s.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", pushback))
				return status.Error(codes.Unavailable, "no")
			}), &pace.Pacer{Limiter: queue.New(bucket(outbound.PerSecond(50)), queue.Config{})}, everything)
			require.Equal(t, attempts == 1, call(t.Context(), c) != nil)
			require.Equal(t, attempts, last)
			if attempts == 2 {
				require.GreaterOrEqual(t, at[1].Sub(at[0]), 3*time.Second)
			}
		})
	}
}

// A stream is not repeated once its program has got a message, nor a stream of the client's.
func TestAttempt_StreamWithMessagesIsNotRepeated(t *testing.T) {
	for kind, messages := range map[string]int{"stream": 1, "client's stream": 0} {
		bubble(t, kind, func(t *testing.T) {
			var sent int64
			c := dialed(t, server(func(s grpc.ServerStream, n int64) error {
				sent = n
				for range messages {
					require.NoError(t, s.SendMsg(&grpc_health_v1.HealthCheckResponse{}))
				}
				return status.Error(codes.Unavailable, "no")
			}), &pace.Pacer{Limiter: bucket(outbound.PerSecond(50))}, everything)
			require.Equal(t, codes.Unavailable, status.Code(calls[kind](t.Context(), c)))
			require.EqualValues(t, 1, sent)
		})
	}
}

// credentials are asked after the Pacer's.
type credentials func() error

func (c credentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, c()
}
func (credentials) RequireTransportSecurity() bool { return false }

// A limiter that fails is asked again with the next attempt, and its error is that of the call.
func TestAttempt_FailedLimiterIsAskedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		failures int
		err      error
		asked    int
	}{
		"a store that is back": {1, store.ErrUnavailable, 4},
		"a store that is not":  {9, store.ErrUnavailable, 5},
		"a bad cost":           {9, outbound.ErrInvalid, 2},
		"another error":        {9, io.ErrUnexpectedEOF, 2},
	} {
		inTime(t, name, func(t *testing.T, call func(context.Context, client) error) {
			asked := 0
			c := dialed(t, failing(2, status.Error(codes.Unavailable, "no")), &pace.Pacer{Limiter: limiter(func() error {
				if asked++; asked > 1 && asked <= 1+test.failures {
					return test.err
				}
				return nil
			})}, everything)
			err := call(t.Context(), c)
			if test.failures == 1 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, test.err)
			}
			require.Equal(t, test.asked, asked)
		})
	}
}

// limiter is a limiter that admits calls without an error.
type limiter func() error

func (l limiter) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, l()
}

// An interceptor that repeats calls is paced on either side of the Pacer.
func TestAttempt_InterceptorsRetriesArePaced(t *testing.T) {
	again := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		for range 3 {
			err = errors.Join(err, invoke(ctx, method, request, reply, cc, opts...))
		}
		return err
	})
	for name, outside := range map[string]bool{"outside": true, "inside": false} {
		t.Run(name, func(t *testing.T) {
			b := bucket(outbound.Window(10, time.Hour), outbound.InFlight(1))
			p := &pace.Pacer{Limiter: b}
			options := append(p.DialOptions(), again)
			if outside {
				options = append([]grpc.DialOption{again}, p.DialOptions()...)
			}
			c := dialed(t, works, &pace.Pacer{Limiter: outbound.Unlimited{}}, options...)
			require.NoError(t, check(t.Context(), c))
			states := statesOf(t, b)
			require.EqualValues(t, 7, states[0].Remaining)
			require.Zero(t, states[1].Level)
		})
	}
}

// A panic below the Pacer ends the call in flight.
func TestAttempt_PanicEndsTheCall(t *testing.T) {
	b := bucket(outbound.InFlight(1))
	c := dialed(t, works, &pace.Pacer{Limiter: b}, grpc.WithDefaultCallOptions(grpc.ForceCodec(panics{})))
	require.Panics(t, func() { _ = check(t.Context(), c) })
	require.Zero(t, statesOf(t, b)[0].Level)
}

// panics is a codec.
type panics struct{}

func (panics) Marshal(any) ([]byte, error)        { panic("marshal") }
func (panics) Unmarshal(data []byte, v any) error { return nil }
func (panics) Name() string                       { return "panics" }

// A refusal that comes while a large message is being sent holds the bucket, too, although gRPC reports no error of the attempt.
func TestAttempt_RefusedDuringItsMessage(t *testing.T) {
	for name, header := range map[string]string{"HTTP": "", "gRPC, with a time": "30"} {
		for _, options := range [][]grpc.DialOption{nil, {everything}} {
			if header == "" && options != nil {
				continue // nothing says why gRPC repeats the attempt, until the last one
			}
			bubble(t, name, func(t *testing.T) {
				b := bucket(outbound.PerSecond(50), outbound.InFlight(1))
				c := dialed(t, &gateway{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
					if header != "" {
						w.Header().Set("Content-Type", "application/grpc")
						w.Header().Set("Grpc-Status", "14")
						w.Header().Set("Retry-After", header)
					}
					w.WriteHeader(http.StatusTooManyRequests)
				}}, &pace.Pacer{Limiter: b}, options...)
				_, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 1<<20)})
				require.Error(t, err)
				states := statesOf(t, b)
				require.GreaterOrEqual(t, states[0].HeldFor, time.Second)
				require.Zero(t, states[1].Level)
			})
		}
	}
}
