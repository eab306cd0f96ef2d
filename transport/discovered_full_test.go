package transport

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/dripfeed/dripfeed/outbound"
)

// crowded is a Discovered whose two limiters are those of the route a and of its bucket ab. The
// routes b and c, which belong to ab too, find no room; their host's limiter has much. It
// returns the transport, and the host's limiter once there is one.
func crowded(t *testing.T, status *int) (*Transport, func() *outbound.Bucket) {
	t.Helper()
	d, _ := hourly()
	var host *outbound.Bucket
	d.Limiters.Max = 2
	d.Limiters.New = func(key string) (outbound.Limiter, error) {
		limit := outbound.Limit{Capacity: 2, LeakRate: 2. / 3600}
		if key == "api.test" {
			limit = outbound.Limit{Capacity: 100, LeakRate: 100. / 3600}
		}
		b, err := outbound.NewBucket(key, limit)
		if key == "api.test" {
			host = b
		}
		return b, err
	}
	rt := &Transport{For: d.For, OnResponse: d.Learn}
	rt.Base = base(func(req *http.Request) (*http.Response, error) {
		return answer(*status, nil, "X-Bucket", "ab", "Retry-After", "600")(req)
	})
	for range 2 { // by its route, and then by its name, too
		if err := fetch(t, rt, "https://api.test/a"); err != nil {
			t.Fatal(err)
		}
	}
	return rt, func() *outbound.Bucket { return host }
}

// The limiter of a name counts each request of its routes, also where the route's own found
// no room.
func TestARouteWithoutRoomKeepsToTheLimiterOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 200
		rt, host := crowded(t, &status)
		for i := range 2 { // one tells the name, and one takes what ab has left
			if err := fetch(t, rt, "https://api.test/b"); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		var none *outbound.ThrottledError
		for range 3 {
			if err := fetch(t, rt, "https://api.test/b"); !errors.As(err, &none) || none.Key != "api.test=ab" {
				t.Errorf("%v, want no room in the limiter of the name", err)
			}
		}
		if s, err := host().State(t.Context()); err != nil || s.Level != 2 {
			t.Errorf("the host's limiter has counted %v, %v, want 2: what ab refuses costs nothing", s.Level, err)
		}
	})
}

// A refusal of such a request holds its name, and so the name's other routes.
func TestARouteWithoutRoomSteersTheLimiterOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 200
		rt, host := crowded(t, &status)
		if err := fetch(t, rt, "https://api.test/b"); err != nil {
			t.Fatal(err)
		}
		status = 429
		if err := fetch(t, rt, "https://api.test/b"); err != nil {
			t.Fatal(err)
		}
		var none *outbound.ThrottledError
		if err := fetch(t, rt, "https://api.test/b"); !errors.As(err, &none) || !none.Held || none.Key != "api.test=ab" {
			t.Errorf("%v, want a hold of the name", err)
		}
		if s, err := host().State(t.Context()); err != nil || s.HeldFor > 0 {
			t.Errorf("the host is held for %v, %v", s.HeldFor, err)
		}
	})
}

// A request that finds room in neither limiter costs its host's one call, and not two, and
// steers it.
func TestARequestWithoutAnyRoomCostsItsHostOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := hourly()
		var host *outbound.Bucket
		d.Limiters.Max = 1
		d.Limiters.New = func(key string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(key, outbound.Limit{Capacity: 10, LeakRate: 10. / 3600})
			if key == "api.test" {
				host = b
			}
			return b, err
		}
		status := 200
		rt := &Transport{For: d.For, OnResponse: d.Learn, Base: base(func(req *http.Request) (*http.Response, error) {
			return answer(status, nil, "X-Bucket", "b"+req.URL.Path, "Retry-After", "600")(req)
		})}
		for _, path := range []string{"a", "b", "b", "b"} { // a takes the room
			if err := fetch(t, rt, "https://api.test/"+path); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := host.State(t.Context()); err != nil || s.Level != 3 {
			t.Errorf("the host's limiter has counted %v, %v, want 3", s.Level, err)
		}
		status = 429
		if err := fetch(t, rt, "https://api.test/b"); err != nil {
			t.Fatal(err)
		}
		if s, err := host.State(t.Context()); err != nil || s.HeldFor == 0 {
			t.Errorf("the host is held for %v, %v, want a hold", s.HeldFor, err)
		}
	})
}
