package redistest

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Faults are what a [Proxy] does to the connections through it. The zero value does nothing.
// Probabilities are from 0 to 1, and the proxy draws again for each request or reply.
type Faults struct {
	// Delay holds each reply back for so long.
	Delay time.Duration
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
	// Handshakes says that the commands that open a connection have faults, too:
	// HELLO, AUTH, SELECT, CLIENT and READONLY. By default the proxy passes them
	// untouched.
	Handshakes bool
}

// Proxy stands between clients and one server. Faults apply to whole requests and
// replies in RESP2 and RESP3, however the network has cut them. A replica's
// connection passes in pieces as they arrive. Published messages cannot pass.
type Proxy struct {
	target string
	listen net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex
	faults Faults
	random *rand.Rand
	lost   int
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
	p := &Proxy{target: target, listen: listen, random: rand.New(rand.NewPCG(1, 0)), links: map[*link]bool{}}
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

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Lost returns how many requests and replies the proxy has dropped or swallowed.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
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
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close() // the nearest thing to a refused connection
		return
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	p.links[l] = true
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

// request returns the fate of a request, and whether its reply has faults.
func (p *Proxy) request(name string) (fate, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if handshakes[name] && !p.faults.Handshakes {
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
	f.delay = p.faults.Delay
	return f
}

// draw uses one random number whatever the probabilities, so that another
// probability does not shift later draws.
func (p *Proxy) draw(drop, swallow float64) fate {
	x := p.random.Float64()
	f := fate{drop: x < drop, swallow: x >= drop && x < drop+swallow}
	if f.drop || f.swallow {
		p.lost++
	}
	return f
}
