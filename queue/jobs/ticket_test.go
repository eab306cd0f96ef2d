package jobs

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	contract "github.com/dripfeed/dripfeed/outbound/store"
)

// Whatever a ticket says, its job gets a place behind the others, and no later one.
func TestTicket_InvalidOneBooksAgain(t *testing.T) {
	bothWays(t, Config{}, perSecond, func(t *testing.T, line func() *Scheduler) {
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
func TestScheduler_WorksWithAFallbackShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &trip{Memory: contract.NewMemory()}
		l := New(shared(t, &fallback.Store{Store: store, Share: 0.5}, "api", outbound.Limit{Capacity: 1, LeakRate: 2}), Config{})
		s := &punctual{t: t}
		places := book(t, l, 10)
		store.fails(fmt.Errorf("%w: down", contract.ErrUnavailable))
		for i, p := range places {
			s.start(fmt.Sprint(i), l, p.Ticket, one)
		}
		begin := time.Now()
		s.jobs.Wait()
		if took := time.Since(begin); took < 9*time.Second || took > 20*time.Second || s.sum() > 40 {
			t.Errorf("they take %v, and %d runs", took, s.sum())
		}
		store.fails(nil)
		time.Sleep(time.Minute)
		s.start("back", l, places[0].Ticket, one)
		s.jobs.Wait()
		s.check(outbound.Limit{Capacity: 1, LeakRate: 2})
	})
}

// The limits were set at the last moment before the store went away. The desk goes on by the old
// ones, and follows later.
func TestScheduler_WorksWhileReservationsCannotFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &trip{Memory: contract.NewMemory()}
		l := New(shared(t, &fallback.Store{Store: store, Share: 0.5}, "api", outbound.Limit{Capacity: 1, LeakRate: 2}), Config{})
		s := &punctual{t: t}
		admitted(t, l, "", one)
		if err := l.bucket.SetLimits(bg, outbound.Limit{Capacity: 1, LeakRate: 4}); err != nil {
			t.Fatal(err)
		}
		store.fails(fmt.Errorf("%w: down", contract.ErrUnavailable))
		begin := time.Now()
		time.AfterFunc(10*time.Minute, func() { store.fails(nil) })
		for i := range 10 {
			s.start(fmt.Sprint(i), l, "", one)
		}
		s.jobs.Wait()
		if took := time.Since(begin); took > 20*time.Second || s.most() > 4 {
			t.Errorf("they take %v, and up to %d runs", took, s.most())
		}
		time.Sleep(20 * time.Minute)
		if state, err := l.bucket.Reservations().State(bg); err != nil || state.Limit.LeakRate != 4 {
			t.Errorf("the desk has %v, %v", state.Limit, err)
		}
		s.check(outbound.Limit{Capacity: 1, LeakRate: 4})
	})
}
