package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the picture anew")

// kept is the file with the picture, which the README shows. To draw it anew:
//
//	go test ./examples/quickstart -run Picture -update
const kept = "quickstart.svg"

func TestPictureShowsWhatHappens(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "drawn.svg")
	var out, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-svg", svg}, screen{out: &out}, &stderr); status != 0 || !strings.Contains(out.String(), "It took 3.94 s") {
		t.Fatalf("status %d, %s\n%s", status, &stderr, &out)
	}
	drawn, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
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

func TestPictureThatCannotBeWrittenIsAnError(t *testing.T) {
	var out, stderr bytes.Buffer
	status := run(t.Context(), []string{"-svg", t.TempDir()}, screen{out: &out}, &stderr)
	if status != 1 || !strings.Contains(stderr.String(), "quickstart: ") {
		t.Errorf("status %d, %s", status, &stderr)
	}
}
