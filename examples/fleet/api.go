package main

import (
	"net"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// ownAPI is the strict API, served on a port of this machine.
type ownAPI struct {
	outboundtest.API
	server *http.Server
	url    string
}

func newAPI(p *params) (*ownAPI, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a := &ownAPI{url: "http://" + listener.Addr().String() + "/"}
	a.Rules = []outboundtest.Rule{outboundtest.LeakyBucket(p.apiCapacity(), p.Rate)}
	a.server = &http.Server{Handler: &a.API, ReadHeaderTimeout: time.Minute}
	go a.server.Serve(listener) // until close; its error only says so
	return a, nil
}

func (a *ownAPI) close() { a.server.Close() } // all workers have ended, so nothing is lost
