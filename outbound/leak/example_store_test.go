package leak_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// rows is a store of fifteen lines: each key is a row of bytes, and one lock makes Update
// atomic. A database has a transaction instead, and its server's clock.
type rows struct {
	mu   sync.Mutex
	rows map[string][]byte
}

func (s *rows) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if err := ctx.Err(); err != nil {
		return leak.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var row leak.Stored
	if data := s.rows[key]; data != nil {
		_ = row.UnmarshalBinary(data) // a row that it cannot read is full to the brim
	}
	// Only now the time: the key is this call's alone.
	reply := op.Apply(&row, time.Duration(time.Now().UnixNano()))
	if reply.Changed {
		s.rows[key], _ = row.MarshalBinary()
	}
	return reply, nil
}

// A store of one's own carries out what Op.Apply computes. TestStore of package outboundtest
// examines it, and outbound.NewSharedBucket makes buckets of it.
func ExampleStore() {
	var store leak.Store = &rows{rows: make(map[string][]byte)}
	limits := []leak.Limit{{Name: "calls", Capacity: 2, Rate: 2. / 3600}}
	for range 3 {
		op := &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{1}}}
		reply, err := store.Update(context.Background(), "weather", op)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("booked:", len(reply.Charges), "refused:", reply.Refused)
	}
	// Output:
	// booked: 1 refused: false
	// booked: 1 refused: false
	// booked: 0 refused: true
}
