package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"testing"
	"testing/synctest"
)

var update = flag.Bool("update", false, "write the picture anew")

// kept is the file with the picture, which the README shows. To draw it anew:
//
//	go test ./examples/quickstart -run Picture -update
const kept = "quickstart.svg"

func TestPicture_ShowsTheCalls(t *testing.T) {
	var drawn []byte
	synctest.Test(t, func(t *testing.T) {
		d, _ := threeAPIs(t)
		if err := d.run(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		drawn = []byte(draw(d))
	})
	for dec := xml.NewDecoder(bytes.NewReader(drawn)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no browser shows it: %v\n%s", err, drawn)
		}
	}
	if *update {
		if err := os.WriteFile(kept, drawn, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, drawn) {
		t.Errorf("%s is out of date, -update writes it anew:\n%s", kept, drawn)
	}
	if len(drawn) > 25_000 {
		t.Errorf("it has %d bytes", len(drawn))
	}
}
