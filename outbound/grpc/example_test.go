package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/dripfeed/dripfeed/outbound"
	pace "github.com/dripfeed/dripfeed/outbound/grpc"
	"github.com/dripfeed/dripfeed/queue"
)

// begin of the README

const retries = `{"methodConfig": [
	{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "30s",
		"backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}},
	{"name": [{"service": "speech.Speech", "method": "Get"}], "retryPolicy": {"maxAttempts": 5,
		"initialBackoff": "1s", "maxBackoff": "30s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}
]}`

func connect(target string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	bucket, err := outbound.NewBucket("speech", outbound.PerMinute(900), outbound.InFlight(20))
	if err != nil {
		return nil, err
	}
	pacer := &pace.Pacer{
		Limiter: queue.New(bucket, queue.Config{}),
		Cost: func(method string, request any) outbound.Cost {
			if strings.HasPrefix(method, "/speech.Speech/Batch") {
				return outbound.Cost{10}
			}
			return outbound.Cost{1}
		},
	}
	options = append(options, grpc.WithDefaultServiceConfig(retries))
	return grpc.NewClient(target, append(pacer.DialOptions(), options...)...)
}

// end

// The code of the README is compiled, and runs.
func TestReadme_ShowsWhatIsCompiled(t *testing.T) {
	conn, err := connect("passthrough:///speech", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	read := func(file, begin, end string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(text), begin)
		before, _, found := strings.Cut(after, end)
		require.True(t, found, file)
		return strings.TrimSpace(before)
	}
	require.Equal(t, read("example_test.go", "// begin of the README\n", "// end\n"), read("README.md", "```go\n", "```"))
	require.Equal(t, strings.Fields(retries), strings.Fields(strings.ReplaceAll(read("doc.go", "unavailable:\n", "// List"), "//", "")))
}

// The service config of the README repeats refusals, and what is unavailable only for the method that is idempotent.
func TestReadme_RepeatsWhatIsSafe(t *testing.T) {
	for method, repeats := range map[string]map[codes.Code]bool{
		"/speech.Speech/Get":       {codes.ResourceExhausted: true, codes.Unavailable: true, codes.Internal: false},
		"/speech.Speech/Recognize": {codes.ResourceExhausted: true, codes.Unavailable: false, codes.Internal: false},
	} {
		for code, repeated := range repeats {
			synctest.Test(t, func(t *testing.T) {
				options, stop := failing(1, status.Error(code, "no")).serve()
				defer stop()
				conn, err := connect("passthrough:///speech", options...)
				require.NoError(t, err)
				defer conn.Close()
				err = conn.Invoke(t.Context(), method, &grpc_health_v1.HealthCheckRequest{}, new(grpc_health_v1.HealthCheckResponse))
				require.Equal(t, repeated, err == nil, "%s, %v: %v", method, code, err)
			})
		}
	}
}

// A client that may make two calls an hour.
func ExamplePacer() {
	options, stop := works.serve()
	defer stop()
	pacer := &pace.Pacer{Limiter: outbound.Must(outbound.NewBucket("api", outbound.Window(2, time.Hour)))}
	conn, err := grpc.NewClient("passthrough:///api", append(pacer.DialOptions(), options...)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 3 {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		if full, ok := errors.AsType[*outbound.ThrottledError](err); ok {
			fmt.Println("retry in", full.RetryAfter.Round(time.Minute))
			continue
		}
		fmt.Println("answered")
	}
	// Output:
	// answered
	// answered
	// retry in 1h0m0s
}

// A call that the API refuses is sent again when the API asks for it. gRPC repeats it, and the queue waits.
func ExamplePacer_DialOptions() {
	options, stop := failing(1, exhausted(50*time.Millisecond)).serve()
	defer stop()
	bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(100)))
	pacer := &pace.Pacer{Limiter: queue.New(bucket, queue.Config{})}
	options = append(options, grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "30s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	conn, err := grpc.NewClient("passthrough:///api", append(pacer.DialOptions(), options...)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	began := time.Now()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(err, time.Since(began) >= 50*time.Millisecond)
	// Output: <nil> true
}
