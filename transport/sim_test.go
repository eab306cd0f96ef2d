package transport_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// A fleet of workers shares one bucket through a store at a distance, and calls an API as
// fast as it may, on the fake clock of a synctest bubble.

const (
	workers   = 20
	storeTrip = 2 * time.Millisecond
	deafness  = 25 * time.Millisecond // how old the clock that a worker has heard may be when a call leaves
)

// episode is a refusal that counted: when the store kept the hold, and how long it was.
type episode struct {
	stored time.Time
	hold   time.Duration
}

// distant is a store in which every trip takes storeTrip. It notes the episodes.
type distant struct {
	store.Store

	mu       sync.Mutex // protects what follows
	known    bool
	epoch    int64
	episodes []episode
}

func (d *distant) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(storeTrip / 2)
	when := time.Now()
	r, err := d.Store.Update(ctx, key, op)
	r.When, r.Heard = when, when.Add(storeTrip/2)
	d.note(&r, when)
	time.Sleep(storeTrip / 2)
	return r, err
}

func (d *distant) note(r *store.Reply, when time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.known {
		d.known, d.epoch = true, r.State.Epoch
	} else if r.State.Epoch > d.epoch {
		d.episodes = append(d.episodes, episode{when, r.State.Rem})
	} else if n := len(d.episodes); n > 0 && r.State.Rem > 0 {
		e := &d.episodes[n-1]
		e.hold = max(e.hold, when.Sub(e.stored)+r.State.Rem) // of the same episode, which may extend it
	}
	d.epoch = max(d.epoch, r.State.Epoch)
}

// fleet is one simulation.
type fleet struct {
	limit   outbound.Limit
	api     http.RoundTripper
	profile *profile.Profile
	maxHold time.Duration

	store   *distant
	stop    context.CancelFunc // ends the run before its time
	mu      sync.Mutex         // protects what follows
	calls   []time.Time
	refused []time.Time // when these calls had left
}

// run lets the workers call until the time is up. during runs beside them.
func (f *fleet) run(t *testing.T, length time.Duration, during func(b *outbound.Bucket)) {
	t.Helper()
	f.store = &distant{Store: store.NewMemory()}
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	f.stop = stop
	var all sync.WaitGroup
	var first *outbound.Bucket
	for range workers {
		b, err := outbound.NewSharedBucket(f.store, "api", f.limit)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		rt := &transport.Transport{Base: departures{f}, Limiter: queue.New(b, queue.Config{}), Profile: f.profile, MaxHold: f.maxHold}
		for range 2 {
			all.Go(func() { call(ctx, t, rt) })
		}
	}
	if during != nil {
		during(first)
	}
	all.Wait()
	time.Sleep(time.Second) // for the queues' last trips
}

// call makes one call after the other.
func call(ctx context.Context, t *testing.T, rt http.RoundTripper) {
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.test/v1/items", nil)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			return // the time is up
		}
		_ = resp.Body.Close()
	}
}

// departures is the base of all workers: it notes what leaves.
type departures struct{ f *fleet }

func (d departures) RoundTrip(req *http.Request) (*http.Response, error) {
	left := time.Now()
	resp, err := d.f.api.RoundTrip(req)
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.f.calls = append(d.f.calls, left)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		d.f.refused = append(d.f.refused, left)
	}
	return resp, err
}

// perEpisode returns the most refusals of one episode, and by how much the latest call that
// left into a hold came after the store kept that hold.
func (f *fleet) perEpisode() (most int, latest time.Duration) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, e := range f.store.episodes {
		var before time.Time // the end of the last hold
		if i > 0 {
			before = f.store.episodes[i-1].stored.Add(f.store.episodes[i-1].hold)
		}
		n := 0
		for _, left := range f.refused {
			if !left.Before(before) && left.Before(e.stored.Add(e.hold)) {
				n++
				latest = max(latest, left.Sub(e.stored))
			}
		}
		most = max(most, n)
	}
	return most, latest
}

// counts returns how many calls have left, how many of them the API refused, and in how many
// episodes.
func (f *fleet) counts() (calls, refused, episodes int) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls), len(f.refused), len(f.store.episodes)
}

// sampled leaves some simulations out where they take too long.
func sampled(t *testing.T) {
	t.Helper()
	if raced || testing.Short() {
		t.Skip("a long simulation")
	}
}

// admitted returns how many calls the API has admitted from a time on, for so long.
func admitted(api *outboundtest.API, from time.Time, length time.Duration) float64 {
	n := 0.0
	for at, units := range api.Admitted().All() {
		if !at.Before(from) && at.Before(from.Add(length)) {
			n += units
		}
	}
	return n
}
