package main

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound/rowstore"
)

// A server that hangs is an outage until it goes on, and no call counts twice.
func TestRows_ServerHangs(t *testing.T) {
	url, process := server(t)
	exampletest.Outage(t, rowstore.New(rowsOf(t, url), rowstore.Config{Timeout: 4 * time.Second}), process)
}
