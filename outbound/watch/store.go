package watch

import (
	"fmt"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// boardStore is a store on the board.
type boardStore struct {
	name  string
	stats storeStats      // nil: it counts nothing
	state *fallback.Store // nil: it is no fallback
}

// storeStats is a store that counts its trips: those of packages redisstore, pgstore and rowstore are.
type storeStats interface{ Stats() store.StoreStats }

// AddStore shows a store under a name. The store counts its trips, as those of packages redisstore, pgstore and rowstore
// do, or it is a [*fallback.Store], which is shown with the counts of the store in it. For any other AddStore returns
// an error that is [outbound.ErrInvalid]. A name that was added before stands for the new store.
func (b *Board) AddStore(name string, s any) error {
	is := &boardStore{name: name}
	if f, ok := s.(*fallback.Store); ok && f != nil {
		is.state, s = f, f.Store
	}
	if is.stats, _ = s.(storeStats); is.stats == nil && is.state == nil {
		return fmt.Errorf("%w: a store that a Board can show, not a %T", outbound.ErrInvalid, s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beginLocked()
	if i := slices.IndexFunc(b.stores, func(x *boardStore) bool { return x.name == name }); i >= 0 {
		b.stores[i] = is
	} else {
		b.stores = append(b.stores, is)
	}
	return nil
}

// storesShown returns what is known of the stores. It makes no trip.
func (b *Board) storesShown() (all []Store) {
	b.mu.Lock()
	stores := slices.Clone(b.stores)
	b.mu.Unlock()
	for _, s := range stores {
		all = append(all, s.show())
	}
	return all
}

func (s *boardStore) show() Store {
	is := Store{Name: s.name}
	fell := func(server string, since time.Time, err error) {
		is.Away = true
		if away := time.Since(since); away > is.AwayFor {
			is.AwayFor = away
		}
		if server == "" {
			server = "The store"
		}
		why := ""
		if err != nil {
			is.Err = err.Error()
			why = ": " + is.Err
		}
		is.Trouble = append(is.Trouble, fmt.Sprintf("%s has not answered for %s%s.", server, brief(time.Since(since)), why))
	}
	if is.Counts = s.stats != nil; is.Counts {
		c := s.stats.Stats()
		is.Trips, is.Operations, is.Repeats, is.Remembered, is.Failures = c.Trips.Count, c.Answered, c.Repeats, c.Remembered, c.Failed
		is.TripTime, is.Within = c.Trips.Time, c.Trips.Within
		if c.Trips.Count > 0 {
			is.MeanTrip = c.Trips.Time / time.Duration(c.Trips.Count)
		}
		for _, o := range c.Outages {
			fell(o.Server, o.Since, o.Err)
		}
	}
	if s.state != nil {
		f := s.state.State()
		is.Fallback, is.Shares, is.Switched = true, f.Keys, f.Outages
		switch {
		case f.Away && !is.Away:
			fell("", f.Since, f.Err)
			fallthrough
		case f.Away:
			is.Trouble = append(is.Trouble, fmt.Sprintf("Calls do without it: this process has used %s alone.", count(uint64(f.Keys), "key", "keys")))
		}
	}
	return is
}
