package redistest

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// link is one client's connection through a proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	closed         chan struct{}
	once           sync.Once

	mu     sync.Mutex
	asked  []bool // whether each reply that is due has faults
	pieces bool   // true for a replica's connection: it has no more requests and replies
}

// parcel is data for the other side, and when to send it.
type parcel struct {
	due  time.Time
	data []byte
	last bool // close the connection instead
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, closed: make(chan struct{})}
}

// close ends the connection at once, both ways.
func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		_ = l.client.Close() // data not sent yet is lost, as is meant
		_ = l.server.Close()
	})
}

// run serves the connection until one side ends it.
func (l *link) run() {
	var wg sync.WaitGroup
	requests, replies := make(chan parcel, 1024), make(chan parcel, 1024)
	wg.Go(func() { l.requests(requests) })
	wg.Go(func() { l.replies(replies) })
	wg.Go(func() { l.carry(requests, l.server) })
	wg.Go(func() { l.carry(replies, l.client) })
	wg.Wait()
}

// carry sends parcels when they are due, and ends the connection after the
// last.
func (l *link) carry(parcels <-chan parcel, to net.Conn) {
	defer l.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p := range parcels {
		if wait := time.Until(p.due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-l.closed:
				return
			}
		}
		if p.last {
			return
		}
		if _, err := to.Write(p.data); err != nil {
			// The requests of a client that has gone still reach the server.
			if to == l.client {
				continue
			}
			return
		}
	}
}

// post adds a parcel, and reports whether the link is still open.
func (l *link) post(to chan<- parcel, p parcel) bool {
	select {
	case to <- p:
		return true
	case <-l.closed:
		return false
	}
}

// requests reads the client's requests until it ends.
func (l *link) requests(to chan<- parcel) {
	defer close(to)
	r := bufio.NewReader(l.client)
	deaf := false
	for {
		raw, err := readValue(r)
		if err != nil {
			return
		}
		if deaf {
			continue
		}
		name := commandOf(raw)
		f, faulty := l.proxy.request(name)
		switch {
		case f.swallow:
			deaf = true
			continue
		case f.drop:
			l.post(to, parcel{due: time.Now(), last: true})
			return
		}
		l.expect(name, faulty)
		if !l.post(to, parcel{due: time.Now().Add(f.delay), data: raw}) {
			return
		}
		if l.inPieces() {
			l.pass(r, to, func() fate { return fate{delay: l.proxy.with().DelayRequests} })
			return
		}
	}
}

// expect notes that a reply is due.
func (l *link) expect(command string, faulty bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pieces = command == "PSYNC"
	l.asked = append(l.asked, faulty)
}

func (l *link) inPieces() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pieces
}

// answered reports whether the reply at hand has faults.
func (l *link) answered() (faulty bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) > 0 {
		faulty, l.asked = l.asked[0], l.asked[1:]
	}
	return faulty
}

// replies reads the server's replies until it ends.
func (l *link) replies(to chan<- parcel) {
	defer close(to)
	r := bufio.NewReader(l.server)
	deaf := false
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		if l.inPieces() {
			l.pass(r, to, l.proxy.reply)
			return
		}
		raw, err := readValue(r)
		if err != nil {
			return
		}
		var f fate
		if l.answered() && !deaf {
			f = l.proxy.reply()
		}
		deaf = deaf || f.swallow
		if deaf {
			continue
		}
		if !l.post(to, parcel{due: time.Now().Add(f.delay), data: raw, last: f.drop}) || f.drop {
			return
		}
	}
}

// pass sends bytes on in pieces, as they arrive.
func (l *link) pass(r *bufio.Reader, to chan<- parcel, next func() fate) {
	deaf := false
	for {
		piece := make([]byte, 64<<10)
		n, err := r.Read(piece)
		if err != nil {
			return
		}
		if deaf {
			continue
		}
		f := next()
		deaf = f.swallow
		if !deaf && !l.post(to, parcel{due: time.Now().Add(f.delay), data: piece[:n], last: f.drop}) || f.drop {
			return
		}
	}
}
