package watch

import (
	"cmp"
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
	stats hasStoreStats   // or nil
	state *fallback.Store // or nil
}

// hasStoreStats is a store that counts its requests, as those of packages redisstore, pgstore and
// rowstore do.
type hasStoreStats interface{ Stats() store.StoreStats }

// AddStore shows a store under a name. The store is one of packages redisstore, pgstore and
// rowstore, or a [*fallback.Store], which shows the counts of the store in it. For any other
// AddStore returns an error that is [outbound.ErrInvalid]. If a name was added before, it now names
// the new store.
func (b *Board) AddStore(name string, s any) error {
	is := &boardStore{name: name}
	if f, ok := s.(*fallback.Store); ok && f != nil {
		is.state, s = f, f.Store
	}
	if is.stats, _ = s.(hasStoreStats); is.stats == nil && is.state == nil {
		return fmt.Errorf("%w: a store that a Board can show, not a %T", outbound.ErrInvalid, s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began = cmp.Or(b.began, time.Now())
	b.stores = slices.DeleteFunc(b.stores, func(x *boardStore) bool { return x.name == name })
	b.stores = append(b.stores, is)
	return nil
}

// storesShown returns what is known of the stores. It makes no request.
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
	var outages []store.Outage
	if s.stats != nil {
		c := s.stats.Stats()
		outages, c.Outages = c.Outages, nil // JSON cannot encode every error
		is.Stats = &c
	}
	if s.state != nil {
		f := s.state.State()
		if f.Unavailable && len(outages) == 0 {
			outages = []store.Outage{{Since: f.Since, Err: f.Err}}
		}
		f.Err = nil
		is.Fallback = &f
	}
	for _, o := range outages {
		server, why := "The store", ""
		if o.Server != "" {
			server = o.Server
		}
		if o.Err != nil {
			is.Err = o.Err.Error()
			why = ": " + is.Err
		}
		away := time.Since(o.Since)
		is.Unavailable, is.UnavailableFor = true, max(is.UnavailableFor, away)
		is.Trouble = append(is.Trouble, fmt.Sprintf("%s has not answered for %s%s.", server, brief(away), why))
	}
	if f := is.Fallback; f != nil && f.Unavailable {
		is.Trouble = append(is.Trouble, fmt.Sprintf("Calls do without it: %s on shares of this process.", count(uint64(f.Keys), "key is", "keys are")))
	}
	return is
}
