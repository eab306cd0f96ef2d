package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

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

func TestReadme_ShowsWhatIsCompiled(t *testing.T) {
	read := func(file, begin, end string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, after, ok := strings.Cut(string(text), begin)
		before, _, ends := strings.Cut(after, end)
		if !ok || !ends {
			t.Fatalf("%s has no %q", file, begin)
		}
		return strings.TrimSpace(before)
	}
	conn, err := connect("passthrough:///speech", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	compiled := strings.ReplaceAll(read("example_test.go", "// begin of the README\n", "// end\n"), "\n\t", "\n")
	if shown := read("README.md", "```go\n", "```"); compiled != shown {
		t.Errorf("README.md shows\n%s\nand not\n%s", shown, compiled)
	}
}

// A client that may make two calls an hour.
func ExamplePacer() {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, &health{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	pacer := &pace.Pacer{Limiter: outbound.Must(outbound.NewBucket("api", outbound.Window(2, time.Hour)))}
	conn, err := grpc.NewClient("passthrough:///api", append(pacer.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
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
