package pgtest

import (
	"bytes"
	"context"
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
	lost      float64       // share of the replies that are lost with their connection
	swallowed float64       // share of the replies that are lost, while the connection stays open
	hang      bool          // nothing goes through
}

// proxy stands between a driver and the server.
type proxy struct {
	listen net.Listener
	ctx    context.Context // ends with the test

	mu          sync.Mutex
	to          string
	faults      faults
	mended      chan struct{} // closed when nothing hangs any more
	connections int           // that were opened
	lost        int           // replies
	replies     int           // replies, lost ones included
}

// newProxy starts a proxy in front of a server. It ends with the test.
func newProxy(t testing.TB, to *server) *proxy {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(bg)
	p := &proxy{listen: listen, ctx: ctx, to: to.host, mended: make(chan struct{})}
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
		cancel()
		_ = listen.Close()
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

// moveTo has new connections go to another server.
func (p *proxy) moveTo(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = s.host
}

// in returns a server that is reached through the proxy.
func (p *proxy) in(s *server) *server {
	c := *s
	c.host, c.cmd = p.listen.Addr().String(), nil
	return &c
}

// counts returns how many connections were opened, and how many replies have come and were lost.
func (p *proxy) counts() (connections, replies, lost int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections, p.replies, p.lost
}

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	to := p.to
	p.connections++
	p.mu.Unlock()
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	end := func() {
		_ = client.Close()
		_ = server.Close()
	}
	defer context.AfterFunc(p.ctx, end)()
	var wg sync.WaitGroup
	wg.Go(func() { defer end(); p.pass(server, client, false) })
	wg.Go(func() { defer end(); p.pass(client, server, true) })
	wg.Wait()
}

// ready ends each reply: the server waits for the next request.
var ready = []byte{'Z', 0, 0, 0, 5}

// pass passes on what one side sends. The handshake, until the server is ready for the first
// time, has no faults except that it hangs.
func (p *proxy) pass(to, from net.Conn, replies bool) {
	greeted, silent := false, false
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		f, mended := p.faults, p.mended
		ends := replies && n >= 6 && bytes.Equal(buffer[n-6:n-1], ready)
		cut := false
		if ends && greeted {
			p.replies++
			if dice := rand.Float64(); dice < f.lost+f.swallowed {
				p.lost++
				silent, cut = true, dice < f.lost
			}
		}
		p.mu.Unlock()
		greeted = greeted || ends
		if cut {
			return
		}
		if f.hang {
			<-mended
		}
		if silent {
			continue
		}
		time.Sleep(f.way)
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
