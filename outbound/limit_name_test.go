package outbound

import (
	"testing"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A name that the user gave stays the user's, also if it reads like what another limit says.
func TestSetLimits_KeepsNamesThatUsersGave(t *testing.T) {
	for name, make := range map[string]func(limits ...Limit) (*Bucket, error){
		"in memory": func(limits ...Limit) (*Bucket, error) { return NewBucket("k", limits...) },
		"shared":    func(limits ...Limit) (*Bucket, error) { return NewSharedBucket(store.NewMemory(), "k", limits...) },
	} {
		b := Must(make(PerSecond(10).Of(0, "10 per 1s")))
		if err := b.SetLimits(ctx, PerSecond(20).Of(0, "20 per 1s")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s, err := b.State(ctx)
			if n, _ := s.Limit.Each(); err != nil || s.Limit.Name != "20 per 1s" || n != 20 {
				t.Errorf("%s: the limit is %v, n %v, %v", name, s.Limit, n, err)
			}
		}
	}
}
