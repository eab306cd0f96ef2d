package outbound

import "sync"

// Beside returns a bucket with the limits of b, but for an [InFlight], whose levels are its own:
// for packages that keep books beside a bucket, as package jobs keeps the places of jobs that are
// away. It is where b is, in this process or in the same store, there under a key that no user's
// key can be, and names itself by b's key in errors. Every call for one name returns the same
// bucket. It is nil if no limit is left.
//
// Limits that are set for b, by whomever, count for it as well, from its next use after this process has heard of
// them in a reply for b. The change ends its hold. Holds of b do not reach it.
func (b *Bucket) Beside(name string) *Bucket {
	if b.unmade() {
		return nil
	}
	p := b.slowPath()
	if p.beside.Load() == nil {
		p.beside.CompareAndSwap(nil, new(sync.Map))
	}
	all := p.beside.Load()
	if made, ok := all.Load(name); ok {
		return made.(*Bucket)
	}
	set := &b.inForce().limitSet
	if p.shared != nil {
		set = p.shared.made
	}
	if len(set.law) == 0 {
		return nil
	}
	own := new(Bucket)
	if p.shared == nil {
		own.init(b.key, set.list(), nil)
	} else {
		own.init(b.key, set.list(), p.shared.store)
		own.slowPath().shared.key = p.shared.keyBeside(name)
	}
	own.slowPath().leader = &leader{core: &b.core}
	made, _ := all.LoadOrStore(name, own)
	return made.(*Bucket)
}
