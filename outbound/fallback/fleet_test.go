package fallback

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Four processes lose the store and find it again, each at times of its own. Together they stay
// within the limit, before, in and after each outage.
func TestStore_SharesStayWithinTheLimit(t *testing.T) {
	for i, l := range []store.Limit{leaky(40, 20), leaky(8, 1), leaky(200, 5)} {
		for round := range 2 {
			t.Run(fmt.Sprint(l.Capacity, " ", l.Rate, " round ", round), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					m := store.NewMemory()
					var all outboundtest.History
					var fleet [4]*process
					begin, end := time.Now(), 5*time.Minute
					for n := range fleet {
						p := newProcess(t, m, &Store{Share: 0.25}, l)
						p.hangs = time.Duration(n) * 100 * time.Millisecond
						fleet[n] = p
						dice := rand.New(rand.NewPCG(uint64(round), uint64(10*i+n)))
						go func() {
							for time.Since(begin) < end {
								if r := p.must(cost(1)); r.Refused {
									time.Sleep(min(r.Wait, time.Second))
								} else {
									all.Add(time.Now(), 1)
								}
								if dice.IntN(int(l.Capacity)) == 0 {
									time.Sleep(time.Duration(dice.Float64() * float64(time.Second)))
								}
							}
						}()
					}
					for _, outage := range []time.Duration{time.Duration(4+40*round) * time.Second, 300 * time.Millisecond, 40 * time.Second} {
						time.Sleep(20 * time.Second)
						for _, err := range []error{errCut, nil} {
							for _, p := range fleet {
								p.set(err)
							}
							time.Sleep(outage)
						}
					}
					time.Sleep(time.Until(begin.Add(end + time.Minute)))
					if err := all.Check(l.Capacity, l.Rate, 1e-6); err != nil {
						t.Error(err)
					}
					if use := all.Use(l.Capacity, l.Rate); use < 0.75 {
						t.Errorf("%v of the rate was used", use)
					}
				})
			})
		}
	}
}

// A process that has nothing to do comes back with the others, and charges what it has spent.
func TestStore_IdleProcessComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := store.NewMemory()
		var fleet [2]*process
		for i := range fleet {
			fleet[i] = newProcess(t, m, &Store{Share: 0.5}, leaky(40, 0.01))
			fleet[i].cutOff()
		}
		time.Sleep(3 * time.Hour)
		n := fleet[0].take()
		fleet[0].set(nil)
		fleet[1].mend()
		if n += fleet[1].take(); n != 40 {
			t.Errorf("%d calls of 40 left in one burst", n)
		}
	})
}
