package redistest

import (
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Faults are what a [Proxy] does to the connections through it. The zero value does nothing.
// Probabilities are from 0 to 1, and the proxy draws again for each request or reply.
type Faults struct {
	// Delay holds each reply back for so long, and Jitter for up to so much more,
	// at random. The replies of one connection keep their order.
	Delay, Jitter time.Duration
	// DelayRequests does the same to requests. They reach the server even if
	// the client has given up and closed the connection meanwhile.
	DelayRequests time.Duration
	// DropReplies is the probability that the proxy closes the connection instead
	// of sending a reply on. The server has then carried the command out.
	DropReplies float64
	// SwallowReplies is the same, but the connection stays open: the proxy sends
	// nothing more to the client on it, and the server still carries out its
	// requests.
	SwallowReplies float64
	// DropRequests is the probability that the proxy closes the connection instead
	// of sending a request on. The request never reaches the server.
	DropRequests float64
	// SwallowRequests is the same, but the connection stays open. Later requests
	// on it do not reach the server either.
	SwallowRequests float64
	// Refuse closes new connections immediately.
	Refuse bool
	// Only, if not nil, reports whether a command has faults, by its words. Its
	// reply has faults then, too, and published messages have none. The proxy
	// calls it for one command at a time. It must not use the proxy.
	Only func(words []string) bool
	// Handshakes says that the commands that open a connection have faults, too:
	// HELLO, AUTH, SELECT, CLIENT and READONLY. By default the proxy passes them
	// untouched.
	Handshakes bool
}

// Counts counts what has gone through a [Proxy], without handshakes.
type Counts struct {
	Connections int
	Requests    int            // requests from clients
	Commands    map[string]int // the same by the first word, in capitals
	Replies     int            // replies sent on to clients, except those of commands without faults
	Dropped     int            // requests and replies lost with their connection
	Swallowed   int            // requests and replies lost while their connection stayed open
}

// Proxy stands between clients and one server. Faults apply to whole requests and
// replies in RESP2 and RESP3, however the network has cut them. A replica's
// connection passes in pieces as they arrive.
type Proxy struct {
	target string
	listen net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	faults Faults
	random *rand.Rand
	counts Counts
	links  map[*link]bool
	ended  bool
}

// NewProxy starts a proxy in front of the server at the address target, without
// faults. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	p := &Proxy{
		target: target, listen: listen,
		counts: Counts{Commands: map[string]int{}}, links: map[*link]bool{},
	}
	p.Seed(1)
	p.wg.Go(p.accept)
	t.Cleanup(p.end)
	return p
}

// Addr returns the proxy's address. Clients use it instead of the server's.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// Set replaces the faults for all later requests and replies. Connections that
// swallow stay silent.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
}

// Seed restarts the random numbers. With one seed the n-th draw is always the same, and so are the
// faults, as long as requests come in sequence.
func (p *Proxy) Seed(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random = rand.New(rand.NewPCG(seed, 0))
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Counts returns the counts since the start.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	c.Commands = maps.Clone(c.Commands)
	return c
}

func (p *Proxy) end() {
	_ = p.listen.Close() // the listener is open until here
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return // closed by end
		}
		p.wg.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	if p.with().Refuse {
		_ = client.Close() // the client must see nothing but a closed connection
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // the nearest thing to a refused connection
		return
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	p.links[l] = true
	p.counts.Connections++
	if p.ended { // too late to be seen by Cut
		l.close()
	}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// with returns the current faults.
func (p *Proxy) with() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// fate is what the proxy does with one request or reply.
type fate struct {
	delay         time.Duration
	drop, swallow bool
}

var handshakes = map[string]bool{
	"HELLO": true, "AUTH": true, "SELECT": true, "CLIENT": true, "READONLY": true, "READWRITE": true,
}

// request counts a request. It returns the request's fate, and whether its reply
// has faults.
func (p *Proxy) request(words []string) (fate, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var name string
	if len(words) > 0 {
		name = strings.ToUpper(words[0])
	}
	if handshakes[name] {
		if !p.faults.Handshakes {
			return fate{}, false
		}
	} else {
		p.counts.Requests++
		p.counts.Commands[name]++
	}
	if p.faults.Only != nil && !p.faults.Only(words) {
		return fate{}, false
	}
	f := p.draw(p.faults.DropRequests, p.faults.SwallowRequests)
	f.delay = p.faults.DelayRequests
	return f, true
}

// reply returns the fate of a reply.
func (p *Proxy) reply() fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.draw(p.faults.DropReplies, p.faults.SwallowReplies)
	if !f.drop && !f.swallow {
		p.counts.Replies++
	}
	f.delay = p.faults.Delay
	if p.faults.Jitter > 0 {
		f.delay += time.Duration(p.random.Int64N(int64(p.faults.Jitter)))
	}
	return f
}

// draw uses one random number whatever the probabilities, so that another
// probability does not shift later draws.
func (p *Proxy) draw(drop, swallow float64) fate {
	x := p.random.Float64()
	f := fate{drop: x < drop, swallow: x >= drop && x < drop+swallow}
	if f.drop {
		p.counts.Dropped++
	}
	if f.swallow {
		p.counts.Swallowed++
	}
	return f
}
