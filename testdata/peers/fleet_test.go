package main

import (
	"bytes"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMeasureFleets_PrintsARowForEach(t *testing.T) {
	if err := missing(); err != nil {
		if required() {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	o := small
	var out bytes.Buffer
	only := regexp.MustCompile(`400/s, 200µs`)
	if err := measureFleets(&out, io.Discard, o, 1100*time.Millisecond, only); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| leaky, 400/s, 200µs | this | ", "| window, 400/s, 200µs | this | "} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("there is no row %q", row)
		}
	}
	t.Log("\n" + out.String())
}

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
