package screen

import (
	"bytes"
	"strings"
	"testing"
)

// Lines are drawn over those of the call before, and a terminal that is too narrow cuts them.
func TestScreen_DrawsOverTheLinesBefore(t *testing.T) {
	var out bytes.Buffer
	if Live(&out) {
		t.Error("a buffer is no terminal")
	}
	s := Screen{Out: &out}
	s.Draw("one", "two")
	s.Draw("three")
	s.Clear()
	s.Clear()
	want := "\x1b[?7lone\ntwo\n\x1b[?7h" + "\x1b[2A\r\x1b[J" + "\x1b[?7lthree\n\x1b[?7h" + "\x1b[1A\r\x1b[J"
	if out.String() != want {
		t.Errorf("it drew %q, want %q", strings.ReplaceAll(out.String(), "\x1b", "^"), want)
	}
}
