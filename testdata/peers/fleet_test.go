package main

import (
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Each fleet that matches has a row.
func TestMeasureFleets_PrintsARowForEach(t *testing.T) {
	redisServer(t)
	var out strings.Builder
	if err := measureFleets(&out, io.Discard, small, 1100*time.Millisecond, regexp.MustCompile(`400/s, 200µs`)); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| leaky, 400/s, 200µs | this | ", "| window, 400/s, 200µs | this | "} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("there is no row %q", row)
		}
	}
}

// A delayed line delays what goes to the server, and what comes back.
func TestDelayed_DelaysBothWays(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		if c, err := server.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	const way = 20 * time.Millisecond
	address, stop, err := delayed(server.Addr().String(), way)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begin := time.Now()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
	if took := time.Since(begin); took < 2*way {
		t.Errorf("an echo takes %v, want at least %v", took, 2*way)
	}
}

// The API of a fleet refuses about all calls beyond its capacity.
func TestAPI_RefusesWhatALimitDoesNotAdmit(t *testing.T) {
	for _, window := range []bool{false, true} {
		f := fleet{Window: window, Rate: 100}
		a := &api{limit: f.limit(), window: window, at: time.Now()}
		for range 2 * int(f.limit().Capacity) {
			a.call()
		}
		if most := int(f.limit().Capacity) - 2; a.refused < most {
			t.Errorf("window %v: %d refused of twice the capacity, want %d", window, a.refused, most)
		}
	}
}
