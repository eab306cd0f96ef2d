package grpc_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dripfeed/dripfeed/outbound"
	pace "github.com/dripfeed/dripfeed/outbound/grpc"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// gateway answers calls with HTTP.
type gateway struct {
	http.HandlerFunc
	calls atomic.Int64
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.calls.Add(1)
	g.HandlerFunc(w, r)
}

func (g *gateway) serve() (options []grpc.DialOption, stop func()) {
	s := &http.Server{Handler: g, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	return serving(s.Serve), func() { _ = s.Close() }
}

// frames answers each request with frames of HTTP/2, and closes the connection if it returns true.
type frames struct {
	answer func(to *http2.Framer, stream uint32) (last bool)
	calls  atomic.Int64
}

func (f *frames) serve() (options []grpc.DialOption, stop func()) {
	var listener net.Listener
	ready := make(chan struct{})
	options = serving(func(l net.Listener) error {
		listener = l
		close(ready)
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			go f.talk(conn)
		}
	})
	<-ready
	return options, func() { _ = listener.Close() }
}

func (f *frames) talk(conn net.Conn) {
	defer conn.Close()
	framer := http2.NewFramer(conn, conn)
	if _, err := conn.Read(make([]byte, len(http2.ClientPreface))); err != nil || framer.WriteSettings() != nil {
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				_ = framer.WritePing(true, frame.Data)
			}
		case *http2.HeadersFrame:
			f.calls.Add(1)
			if f.answer(framer, frame.StreamID) {
				return
			}
		}
	}
}

// An API that refuses all calls is reached at most 3 times in 2 s, however it says so, and one that is down at the
// bucket's pace (envoyproxy/envoy#4660 and #21461, connectrpc/connect-es#1226).
func TestAnswer_RefusalOfAGatewayHoldsTheBucket(t *testing.T) {
	answer := func(status int, body string, header ...string) *gateway {
		return &gateway{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}}
	}
	grpcs := func(status int, header ...string) *gateway {
		return answer(status, "", append(header, "Content-Type", "application/grpc")...)
	}
	rst := func(code http2.ErrCode) *frames {
		return &frames{answer: func(to *http2.Framer, stream uint32) bool { return to.WriteRSTStream(stream, code) != nil }}
	}
	goaway := func(debug string) *frames {
		return &frames{answer: func(to *http2.Framer, stream uint32) bool {
			return to.WriteGoAway(stream, http2.ErrCodeEnhanceYourCalm, []byte(debug)) == nil
		}}
	}
	for name, test := range map[string]struct {
		api  api
		held time.Duration // 0: it is no refusal
	}{
		"429":                             {answer(429, ""), time.Second},
		"429, text":                       {answer(429, "slow down", "Content-Type", "text/plain"), time.Second},
		"429, JSON and a hidden time":     {answer(429, `{"message":"no"}`, "Content-Type", "application/json", "Retry-After", "30"), time.Second},
		"429 of gRPC":                     {grpcs(429, "Grpc-Status", "8", "Retry-After", "30"), 30 * time.Second},
		"429 of gRPC, no status":          {grpcs(429, "Retry-After", "30"), 30 * time.Second},
		"Envoy":                           {grpcs(200, "Grpc-Status", "14", "X-Envoy-Ratelimited", "true"), time.Second},
		"Envoy, another code":             {grpcs(200, "Grpc-Status", "7", "X-Envoy-Ratelimited", "true"), time.Second},
		"Envoy, RESOURCE_EXHAUSTED":       {grpcs(200, "Grpc-Status", "8", "X-Envoy-Ratelimited", "true"), time.Second},
		"Envoy, local":                    {grpcs(200, "Grpc-Status", "14", "Grpc-Message", "local_rate_limited"), time.Second},
		"Envoy, with a time":              {grpcs(200, "Grpc-Status", "14", "X-Envoy-Ratelimited", "true", "Retry-After", "30"), 30 * time.Second},
		"Envoy, with a reset":             {grpcs(200, "Grpc-Status", "14", "X-Envoy-Ratelimited", "true", "X-Ratelimit-Limit", "10, 10;w=60", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "40"), 40 * time.Second},
		"a stream refused for its number": {rst(http2.ErrCodeEnhanceYourCalm), time.Second},
		"a connection, too":               {goaway("slow down"), time.Second},
		"a connection, for its pings":     {goaway("too_many_pings"), 0},
		"Unavailable":                     {grpcs(200, "Grpc-Status", "14", "Grpc-Message", "restarting"), 0},
		"Unknown":                         {grpcs(200, "Grpc-Status", "2"), 0},
		"503":                             {answer(503, "restarting", "Content-Type", "text/html"), 0},
		"a connection that is lost":       {&frames{answer: func(*http2.Framer, uint32) bool { return true }}, 0},
		"a text that quotes":              {grpcs(200, "Grpc-Status", "14", "Grpc-Message", "no 429 (Too Many Requests)"), 0},
	} {
		for kind, call := range calls {
			bubble(t, name+", "+kind, func(t *testing.T) {
				b := bucket(outbound.PerSecond(50))
				c := dialed(t, test.api, &pace.Pacer{Limiter: queue.New(b, queue.Config{})})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				err := call(ctx, c)
				require.Error(t, err)
				require.InDelta(t, test.held, statesOf(t, b)[0].HeldFor, float64(10*time.Millisecond))
				for range 99 {
					require.Error(t, call(ctx, c))
				}
				if reached := reachedBy(test.api); test.held > 0 {
					require.LessOrEqual(t, reached, int64(3))
				} else {
					require.GreaterOrEqual(t, reached, int64(95))
				}
			})
		}
	}
}

// reachedBy returns how many requests the API has got, and begins anew.
func reachedBy(a api) int64 {
	if g, ok := a.(*gateway); ok {
		return g.calls.Swap(0)
	}
	return a.(*frames).calls.Swap(0)
}

// What the API reports in headers, trailers and details holds and slows the bucket as the same response of HTTP would,
// and no longer than MaxHold.
func TestAnswer_MetadataIsReadAsHeaders(t *testing.T) {
	after := func(d time.Duration) []protoadapt.MessageV1 {
		return []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: "RATE_LIMIT_EXCEEDED"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}}
	}
	quota := []protoadapt.MessageV1{&errdetails.QuotaFailure{}}
	spent := []string{"x-ratelimit-limit", "200, 200;w=60", "x-ratelimit-remaining", "0", "x-ratelimit-reset", "40"}
	custom := &profile.Profile{Fields: []profile.Field{{Header: "Errortype", Is: profile.IsCustom}}, Judge: func(r *profile.Response, s *profile.Signal) {
		s.Throttled, s.Reason = r.Status == 503 && r.Get("Errortype") == "8", profile.Rate
	}}
	for name, test := range map[string]struct {
		code     codes.Code
		metadata []string
		details  []protoadapt.MessageV1
		profile  *profile.Profile
		maxHold  time.Duration
		held     time.Duration
		keeps    bool // the speed, although the bucket is held
		text     string
	}{
		"refusal":                     {code: codes.ResourceExhausted, held: time.Second},
		"refusal, RetryInfo":          {code: codes.ResourceExhausted, details: after(20 * time.Minute), held: 20 * time.Minute},
		"refusal, too long":           {code: codes.ResourceExhausted, details: after(300 * time.Hour), held: 24 * time.Hour},
		"refusal, overflow":           {code: codes.ResourceExhausted, details: after(math.MaxInt64), held: 24 * time.Hour},
		"refusal, MaxHold":            {code: codes.ResourceExhausted, details: after(time.Hour), maxHold: time.Minute, held: time.Minute},
		"refusal, negative":           {code: codes.ResourceExhausted, details: after(-time.Hour), held: time.Second},
		"unavailable, RetryInfo":      {code: codes.Unavailable, details: after(20 * time.Minute), held: 20 * time.Minute, keeps: true},
		"unavailable":                 {code: codes.Unavailable},
		"deadline":                    {code: codes.DeadlineExceeded},
		"cancelled":                   {code: codes.Canceled},
		"internal":                    {code: codes.Internal},
		"not found":                   {code: codes.NotFound},
		"success, nothing remains":    {code: codes.OK, metadata: spent, held: 40 * time.Second, keeps: true},
		"success":                     {code: codes.OK, metadata: []string{"retry-after", "20"}},
		"refusal, nothing remains":    {code: codes.ResourceExhausted, metadata: spent, held: 40 * time.Second},
		"refusal, Retry-After":        {code: codes.ResourceExhausted, metadata: append(spent, "retry-after", "20"), held: 20 * time.Second},
		"refusal, pushback":           {code: codes.ResourceExhausted, metadata: []string{"grpc-retry-pushback-ms", "20000"}, held: 20 * time.Second},
		"refusal, never again":        {code: codes.ResourceExhausted, metadata: []string{"grpc-retry-pushback-ms", "-1"}, held: time.Second},
		"refusal, two times":          {code: codes.ResourceExhausted, metadata: []string{"retry-after", "5"}, details: after(20 * time.Second), held: 20 * time.Second},
		"refusal, hostile":            {code: codes.ResourceExhausted, metadata: []string{"retry-after", "NaN", "grpc-retry-pushback-ms", "9999999999999999", "grpc-retry-pushback-ms", "-99"}, held: 24 * time.Hour},
		"too large, and a time":       {code: codes.ResourceExhausted, text: "batch larger than max", details: after(20 * time.Second), held: 20 * time.Second},
		"too large":                   {code: codes.ResourceExhausted, text: "received message larger than max (9 vs. 4)"},
		"unavailable, Retry-After":    {code: codes.Unavailable, metadata: []string{"retry-after", "20"}, held: 20 * time.Second, keeps: true},
		"unavailable, pushback":       {code: codes.Unavailable, metadata: []string{"grpc-retry-pushback-ms", "20000"}, held: 20 * time.Second, keeps: true},
		"unavailable, QuotaFailure":   {code: codes.Unavailable, details: quota, held: time.Second},
		"unavailable, and a time":     {code: codes.Unavailable, details: append(after(20*time.Second), quota...), held: 20 * time.Second},
		"a transaction's own time":    {code: codes.Aborted, details: after(20 * time.Second)},
		"a quota of another kind":     {code: codes.FailedPrecondition, details: quota},
		"a code without a meaning":    {code: 99},
		"an API's own word":           {code: codes.Unknown, metadata: []string{"errortype", "8", "retry-after", "20"}, profile: custom, held: 20 * time.Second},
		"an API's word, of no limits": {code: codes.Unknown, metadata: []string{"errortype", "9"}, profile: custom},
	} {
		for _, in := range []string{"headers", "trailers"} {
			for kind, call := range calls {
				bubble(t, fmt.Sprint(name, ", ", in, ", ", kind), func(t *testing.T) {
					b, sent := bucket(outbound.Limit{Capacity: 9, LeakRate: 50}, outbound.InFlight(1)), int64(0)
					c := dialed(t, server(func(s grpc.ServerStream, n int64) error {
						if sent = n; n == 1 { // a refusal after a success slows the bucket
							return nil
						}
						if in == "headers" {
							require.NoError(t, s.SendHeader(metadata.Pairs(test.metadata...)))
						} else {
							s.SetTrailer(metadata.Pairs(test.metadata...))
						}
						with, err := status.New(test.code, cmp.Or(test.text, "no")).WithDetails(test.details...)
						if err != nil {
							return nil // of a success
						}
						return with.Err()
					}), &pace.Pacer{Limiter: b, Profile: test.profile, MaxHold: test.maxHold})
					require.NoError(t, call(t.Context(), c))
					err := call(t.Context(), c)
					require.Equal(t, test.code, status.Code(err))
					states := statesOf(t, b)
					require.InDelta(t, test.held, states[0].HeldFor, float64(10*time.Millisecond))
					require.Equal(t, test.held > 0 && !test.keeps, states[0].Speed < 1)
					require.Zero(t, states[1].Level, "calls in flight")
					if test.held > 0 {
						require.ErrorIs(t, call(t.Context(), c), outbound.ErrThrottled)
						require.EqualValues(t, 2, sent)
					}
				})
			}
		}
	}
}
