package outbound

import "sync"

// Beside returns a bucket with the limits of b, but for an [AtOnce], whose levels are its own:
// for packages that keep books beside a bucket, as package line keeps the places of jobs that are
// away. It is where b is, in this process or in the same store, there under a key that no user's
// key can be, and names itself by b's key in errors. Every call for one name returns the same
// bucket. It is nil if no limit is left.
//
// Neither b's holds reach it nor limits that are set for b.
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
	made, _ := all.LoadOrStore(name, own)
	return made.(*Bucket)
}
