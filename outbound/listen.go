package outbound

// settler is a listener that is called with the real cost of its call, too.
type settler interface{ Settled(used Cost) }

// settled calls the listeners of a permit with the first valid cost.
func (p *Permit) settled(used *Cost) {
	if l, ok := p.listener.(settler); ok && used.real() && p.in.Flags&reported == 0 {
		p.in.Flags |= reported
		l.Settled(*used)
	}
}

func (b both) Settled(used Cost) {
	for _, l := range b {
		if l, ok := l.(settler); ok {
			l.Settled(used)
		}
	}
}
