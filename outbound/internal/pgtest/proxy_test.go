package pgtest

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faults are what a proxy does to what goes through it. A share of 0 is none.
type faults struct {
	way       time.Duration // of each request, and of each reply
	unheard   float64       // share of the replies that are lost with their connection
	swallowed float64       // share of the replies that are lost, while the connection stays open
	hang      bool          // nothing goes through
}

// proxy stands between a driver and the server.
type proxy struct {
	listen net.Listener
	to     string

	mu          sync.Mutex
	faults      faults
	mended      chan struct{} // closed when nothing hangs any more
	connections int
	lost        int
	trips       int // replies
	open        map[net.Conn]bool
}

// newProxy starts a proxy in front of a server. It ends with the test.
func newProxy(t testing.TB, to *server) *proxy {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listen: listen, to: to.host, mended: make(chan struct{}), open: make(map[net.Conn]bool)}
	close(p.mended)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listen.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		p.set(faults{})
		_ = listen.Close()
		p.mu.Lock()
		for c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		wg.Wait()
	})
	return p
}

// set replaces the faults.
func (p *proxy) set(f faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.hang && !p.faults.hang {
		p.mended = make(chan struct{})
	} else if !f.hang && p.faults.hang {
		close(p.mended)
	}
	p.faults = f
}

// in returns a server that is reached through the proxy.
func (p *proxy) in(s *server) *server {
	c := *s
	c.host, c.cmd = p.listen.Addr().String(), nil
	return &c
}

// counts returns how many connections were opened, and how many replies have come and were lost.
func (p *proxy) counts() (connections, trips, lost int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections, p.trips, p.lost
}

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.connections++
	p.open[client], p.open[server] = true, true
	p.mu.Unlock()
	var wg sync.WaitGroup
	end := func() {
		_ = client.Close()
		_ = server.Close()
	}
	wg.Go(func() { defer end(); p.pass(server, client, false) })
	wg.Go(func() { defer end(); p.pass(client, server, true) })
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, client)
	delete(p.open, server)
}

// ready ends each reply: the server waits for the next request.
var ready = []byte{'Z', 0, 0, 0, 5}

// pass passes on what one side says. The handshake, until the server is ready for the first
// time, has no faults but that it hangs.
func (p *proxy) pass(to, from net.Conn, replies bool) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1000)
	var wg sync.WaitGroup
	wg.Go(func() {
		for x := range pieces { // in order, each after its way
			time.Sleep(time.Until(x.due))
			if _, err := to.Write(x.data); err != nil {
				_ = from.Close()
			}
		}
	})
	defer wg.Wait()
	defer close(pieces)
	greeted, silent := false, false
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		data := bytes.Clone(buffer[:n])
		p.mu.Lock()
		f, mended := p.faults, p.mended
		ends := replies && n >= 6 && bytes.Equal(data[n-6:n-1], ready)
		if ends && greeted {
			p.trips++
			if dice := rand.Float64(); dice < f.unheard+f.swallowed {
				p.lost++
				if silent = true; dice < f.unheard {
					p.mu.Unlock()
					return
				}
			}
		}
		p.mu.Unlock()
		greeted = greeted || ends
		if f.hang {
			<-mended
		}
		if !silent {
			pieces <- piece{time.Now().Add(f.way), data}
		}
	}
}
