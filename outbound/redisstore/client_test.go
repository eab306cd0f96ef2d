package redisstore

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A Do conforms as a client of go-redis does, and texts may be []byte.
func TestDo_Conforms(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	do := Do(func(ctx context.Context, commands [][]string) (replies []any) {
		pipe := rdb.Pipeline()
		for _, c := range commands {
			args := make([]any, len(c))
			for i := range c {
				args[i] = c[i]
			}
			_ = pipe.Process(ctx, once{redis.NewCmd(ctx, args...)})
		}
		cmds, _ := pipe.Exec(ctx)
		for _, cmd := range cmds {
			switch reply, err := cmd.(once).Result(); text := reply.(type) {
			case string:
				replies = append(replies, []byte(text))
			case nil:
				replies = append(replies, err)
			default:
				replies = append(replies, reply)
			}
		}
		return replies
	})
	outboundtest.TestStore(t, func(*testing.T) store.Store { return New(do, Config{Timeout: time.Minute}) })
}

// What a Do returns is the server's word, an outage, or its own fault. None of it charges anything.
func TestDo_RepliesThatAreNone(t *testing.T) {
	for _, c := range []struct {
		replies []any
		says    string
		kind    store.StoreEventKind // that it is reported as, or 0
	}{
		{[]any{Error("NOPERM no permissions")}, "NOPERM", store.EventDenied},
		{[]any{Error("LOADING Redis is loading")}, "LOADING", store.EventDown},
		{[]any{&net.OpError{Op: "dial", Err: errors.New("refused")}}, "refused", store.EventDown},
		{nil, "wrong number of replies", 0},
		{[]any{"", ""}, "wrong number of replies", 0},
		{[]any{nil}, "not a reply", 0},
		{[]any{[]any{[]byte("look"), "a time"}}, "not a reply", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen events
			s := New(Do(func(context.Context, [][]string) []any { return c.replies }), Config{Observe: seen.observe})
			_, err := s.Update(t.Context(), "key", &store.Op{Limits: []store.Limit{{Capacity: 1, Rate: 1}}})
			require.ErrorContains(t, err, c.says)
			require.Equal(t, c.kind == store.EventDown, errors.Is(err, store.ErrUnavailable))
			time.Sleep(time.Minute)
			synctest.Wait()
			if c.kind == 0 {
				require.Empty(t, seen.all)
			} else {
				require.Equal(t, c.kind, seen.all[0].Kind)
			}
		})
	}
	_, err := New(Do(nil), Config{}).Update(t.Context(), "key", new(store.Op))
	require.ErrorIs(t, err, errNoClient)
}
