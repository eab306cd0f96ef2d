package key

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// replies is a store that always replies the same, and counts its requests.
type replies struct {
	store.Store
	reply    store.Reply
	requests int
}

func (s *replies) Update(context.Context, string, *store.Op) (store.Reply, error) {
	s.requests++
	return s.reply, nil
}

// A reply answers later bookings only if it shows no hold, no refusal and no other limits, and only
// those by the same limits, for 25 ms.
func TestRecall_AnswersByAClearReplyOnly(t *testing.T) {
	for name, c := range map[string]struct {
		reply    store.Reply
		number   int64 // of the limits of the second booking
		after    time.Duration
		requests int
	}{
		"clear":                    {after: 20 * time.Millisecond, requests: 1},
		"clear, of long ago":       {after: 26 * time.Millisecond, requests: 2},
		"a hold":                   {reply: store.Reply{State: store.State{Rem: time.Hour}}, requests: 2},
		"a refusal without a hold": {reply: store.Reply{Refused: true, Wait: time.Second}, requests: 2},
		"other limits":             {reply: store.Reply{Limits: []store.Limit{{Capacity: 1, Rate: 1}}}, requests: 2},
		"a stale step":             {reply: store.Reply{Stale: true}, requests: 2},
		"by another Number":        {number: 1, requests: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &replies{reply: c.reply}
				k := NewRecall(s, func() {})
				for _, number := range []int64{0, c.number} {
					op := &store.Op{Limits: []store.Limit{noLimit}, Number: number, Action: store.Book, Costs: []store.Units{{}}}
					if _, err := k.Update(t.Context(), "key", op); err != nil {
						t.Error(err)
					}
					time.Sleep(c.after)
				}
				if s.requests != c.requests {
					t.Errorf("%d requests, want %d", s.requests, c.requests)
				}
			})
		})
	}
}
