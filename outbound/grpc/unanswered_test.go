package grpc

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/dripfeed/dripfeed/outbound"
)

// A call that ends without an error and without an answer is no success. grpc-go 1.85 ends about one of 150 streams so
// that the server refuses by REFUSED_STREAM twice, which no test can wait for.
func TestAttempt_EndWithoutAnAnswerIsNoSuccess(t *testing.T) {
	for answers, events := range map[bool][]stats.RPCStats{
		false: {&stats.OutHeader{}, &stats.End{}},
		true:  {&stats.OutHeader{}, &stats.InTrailer{Trailer: metadata.MD{}}, &stats.End{}},
	} {
		var succeeded []bool
		p := &Pacer{Limiter: outbound.Observe(outbound.Unlimited{}, "api", func(_ context.Context, e outbound.Event) {
			if e.Kind == outbound.EventEnded {
				succeeded = append(succeeded, e.Succeeded)
			}
		})}
		c, err := p.begin(t.Context(), "/package.Service/Method", nil)
		require.NoError(t, err)
		ctx := attempts{p}.TagRPC(c.within(t.Context()), &stats.RPCTagInfo{})
		_, err = attempts{p}.GetRequestMetadata(ctx)
		require.NoError(t, err)
		for _, event := range events {
			attempts{p}.HandleRPC(ctx, event)
		}
		c.end(nil)
		require.Equal(t, []bool{answers}, succeeded)
	}
}
