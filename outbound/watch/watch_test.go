package watch

import (
	"encoding/json"
	"strings"
	"testing"
)

func jsonOf(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// metricsOf returns what a scraper gets.
func metricsOf(b *Board) string {
	var text strings.Builder
	b.prometheus(bg, &text)
	return text.String()
}
