package grpc

import (
	"context"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// call is a call of the program. gRPC may make several attempts at it.
type call struct {
	pacer   *Pacer
	limiter outbound.Limiter
	cost    outbound.Cost

	mu      sync.Mutex       // protects what follows, and the attempts
	unsent  *outbound.Permit // for the next attempt, or nil
	last    *attempt         // or nil
	refused error            // the limiter's, if it has refused the latest attempt
}

// callKey and attemptKey are the keys of a context's *call and *attempt. A client may have several
// pacers.
type (
	callKey    struct{ *Pacer }
	attemptKey struct{ *Pacer }
)

// within returns the context of the call's attempts.
func (c *call) within(ctx context.Context) context.Context {
	return context.WithValue(ctx, callKey{c.pacer}, c)
}

// admit asks the limiter to admit the next attempt.
func (c *call) admit(ctx context.Context) (*outbound.Permit, error) {
	permit := new(outbound.Permit)
	err := permit.AcquireIn(ctx, c.limiter, c.cost)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = err
	return permit, err
}

// take returns the permit that is there for the next attempt, or nil.
func (c *call) take() *outbound.Permit {
	c.mu.Lock()
	defer c.mu.Unlock()
	permit := c.unsent
	c.unsent = nil
	return permit
}

// end ends a call: also one whose last attempt was not sent, or has panicked.
func (c *call) end(err error) {
	if permit := c.take(); permit != nil {
		permit.Failed()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch a := c.last; {
	case a == nil || a.permit == nil:
	case a.ended:
		a.report(err)
	default:
		a.permit.Done()
	}
}

// result returns the error of a call: the limiter's, if that is why gRPC has given up.
func (c *call) result(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.refused != nil { // also io.EOF, which gRPC returns for some attempts
		return refusal{c.refused}
	}
	return err
}

// attempt is what gRPC sends of a call. It sends further ones by itself.
type attempt struct {
	call            *call
	permit          *outbound.Permit // nil until it is admitted, and once its end is reported
	header, trailer metadata.MD
	sent            bool
	answered        bool // the API has sent something
	ended           bool // but the status may be unknown
}

// report reports how the attempt has ended. grpc-go 1.85 ends some streams that the API has refused
// without an error.
func (a *attempt) report(err error) {
	t := transport.Transport{Profile: a.call.pacer.Profile, MaxHold: a.call.pacer.MaxHold}
	resp := response(err, a.header, a.trailer)
	if err == nil && !a.answered {
		resp = nil
	}
	t.Report(resp, a.permit)
	a.permit = nil
}

// status returns the error of an attempt that gRPC repeats. If the trailer does not have it, it is
// Unavailable.
func (a *attempt) status() error {
	var s spb.Status
	if v := a.trailer["grpc-status-details-bin"]; len(v) > 0 && proto.Unmarshal([]byte(v[0]), &s) == nil && s.Code != 0 {
		return status.ErrorProto(&s)
	}
	return status.Error(codes.Unavailable, "")
}

// attempts paces the attempts of a pacer's calls. As credentials it is asked before each of them,
// and as a stats.Handler it learns how each has ended.
type attempts struct{ *Pacer }

// TagRPC is called before each attempt.
func (p attempts) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	c, ok := ctx.Value(callKey(p)).(*call)
	if !ok {
		return ctx
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.last; a != nil && a.ended && a.permit != nil {
		a.report(a.status())
	}
	c.last = &attempt{call: c}
	return context.WithValue(ctx, attemptKey(p), c.last)
}

// GetRequestMetadata waits until the limiter admits the attempt.
func (p attempts) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	a, ok := ctx.Value(attemptKey(p)).(*attempt)
	if !ok {
		return nil, nil // a health check of gRPC itself
	}
	permit := a.call.take()
	if permit == nil {
		var err error
		if permit, err = a.call.admit(ctx); err != nil {
			if s := (refusal{err}); s.GRPCStatus().Code() == codes.Unavailable {
				return nil, s
			}
			return nil, status.Error(codes.Canceled, err.Error()) // which no policy repeats
		}
	}
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	a.permit = permit
	return nil, nil
}

// RequireTransportSecurity returns false: the Pacer adds no metadata.
func (attempts) RequireTransportSecurity() bool { return false }

// HandleRPC is called with the events of each attempt.
func (p attempts) HandleRPC(ctx context.Context, event stats.RPCStats) {
	a, ok := ctx.Value(attemptKey(p)).(*attempt)
	if !ok {
		return
	}
	c := a.call
	c.mu.Lock()
	defer c.mu.Unlock()
	switch event := event.(type) {
	case *stats.OutHeader:
		a.sent = true
	case *stats.InHeader:
		a.header, a.answered = event.Header, true
	case *stats.InTrailer:
		a.answered = true
	case *stats.End:
		a.trailer, a.ended = event.Trailer, true
		switch {
		case a.permit == nil: // it was not admitted
		case !a.sent && c.unsent == nil:
			c.unsent, a.permit = a.permit, nil
		case event.Error != nil || a != c.last:
			a.report(event.Error)
		// gRPC ends an attempt without an error if the API has refused it before its message was
		// sent. Then the call's end has its status, unless gRPC repeats it first.
		case a.header == nil && p.throttled(a):
			a.report(a.status())
		}
	}
}

// throttled reports whether the trailer of an attempt alone shows that the API has refused it.
func (p *Pacer) throttled(a *attempt) bool {
	s := p.Profile.Read(response(a.status(), a.trailer), time.Time{})
	return s.Throttled
}

// TagConn returns ctx.
func (attempts) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (attempts) HandleConn(context.Context, stats.ConnStats) {}
