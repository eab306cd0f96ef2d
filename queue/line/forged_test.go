package line

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// Whatever a ticket says, its job gets a place behind the others, and no later one.
func TestATicketThatIsNoneBooksAnew(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Line) {
		l := line()
		good := book(t, l, 5)[4].Ticket
		life := good[:strings.LastIndex(good, ":")+1]
		for i, ticket := range []string{"", "garbage", "1-", life, life + "zzzzzzzzzzz", life + "1y2p0ij32e8e7", "1-0:0:0", strings.Repeat("1-", 1<<19), good + "\x00"} {
			later := sentBack(t, l, ticket, one)
			if later.Ticket == ticket || !near(later.In, time.Duration(4+i)*time.Second) {
				t.Errorf("%.40q is sent back for %v with %q", ticket, later.In, later.Ticket)
			}
		}
	})
}

// While the store is away a fallback gives each worker a share of the desk and of the gate, and the
// tickets of the store are void.
func TestALineGoesOnWithAShareOfAStoreThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &trip{Memory: leak.NewMemory()}
		l := New(shared(t, &fallback.Store{Store: store, Share: 0.5}, "api", outbound.Limit{Capacity: 1, LeakRate: 2}), Config{})
		s := &punctual{t: t}
		places := book(t, l, 10)
		store.mu.Lock()
		store.err = fmt.Errorf("%w: down", outbound.ErrAway)
		store.mu.Unlock()
		for i, p := range places {
			s.start(fmt.Sprint(i), l, p.Ticket, one)
		}
		begin := time.Now()
		s.jobs.Wait()
		if took := time.Since(begin); took < 9*time.Second || took > 20*time.Second || s.sum() > 40 {
			t.Errorf("they take %v, and %d runs", took, s.sum())
		}
		store.mu.Lock()
		store.err = nil
		store.mu.Unlock()
		time.Sleep(time.Minute)
		s.start("back", l, places[0].Ticket, one)
		s.jobs.Wait()
		s.check(outbound.Limit{Capacity: 1, LeakRate: 2})
	})
}
