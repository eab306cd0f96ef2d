package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/dripfeed/dripfeed/outbound"
	pace "github.com/dripfeed/dripfeed/outbound/grpc"
	"github.com/dripfeed/dripfeed/queue"
)

// connect is the code of the README.
func connect(target string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	// begin of the README
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
	return grpc.NewClient(target, append(options, pacer.DialOptions()...)...)
	// end
}

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
	compiled := strings.ReplaceAll(read("example_test.go", "// begin of the README\n", "// end\n"), "\n\t", "\n")
	require.Equal(t, compiled, read("README.md", "```go\n", "```"))
}

// A client that may make two calls an hour.
func ExamplePacer() {
	options, stop := new(health).serve()
	defer stop()
	pacer := &pace.Pacer{Limiter: outbound.Must(outbound.NewBucket("api", outbound.Window(2, time.Hour)))}
	conn, err := grpc.NewClient("passthrough:///api", append(options, pacer.DialOptions()...)...)
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
