package pgstore

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Names of schemas and tables are quoted, whatever is in them.
func TestSQL_QuotesNames(t *testing.T) {
	for _, c := range []struct {
		config Config
		table  string
	}{
		{Config{}, `"dripfeed_buckets"`},
		{Config{Table: "Limits"}, `"Limits"`},
		{Config{Schema: "rates", Table: `a"; DROP TABLE b; --`}, `"rates"."a""; DROP TABLE b; --"`},
		{Config{Schema: "x\x00y"}, `"xy"."dripfeed_buckets"`},
	} {
		text := c.config.SQL()
		require.Contains(t, text, "CREATE TABLE IF NOT EXISTS "+c.table+" (")
		require.Equal(t, c.config.Schema != "", strings.Contains(text, "CREATE SCHEMA"))
		require.NotContains(t, text, "_NAME")
		require.NotContains(t, text, "_TEXT")
		require.Contains(t, c.config.SQLDown(), "DROP TABLE IF EXISTS "+c.table+";")
	}
}

// Nothing is left in a session: its next transaction may be that of another process.
func TestSQL_HasNoSessionState(t *testing.T) {
	text := strings.ToLower(Config{}.SQL())
	for _, word := range []string{"advisory", "listen", "temp", "\nset ", "false);\n\tend if"} {
		require.NotContains(t, text, word)
	}
	require.Equal(t, strings.Count(text, "set_config("), strings.Count(text, ", true)"), "each setting is of its transaction")
}

// A time is a setting of PostgreSQL: at least 1 ms, at most an int32.
func TestSQL_SettingsOfTimes(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "1", -time.Hour: "1", time.Second: "1000", math.MaxInt64: "2147483647"} {
		require.Equal(t, want, milliseconds(d))
	}
}

// Arrays are texts that PostgreSQL reads.
func TestSQL_ArraysAsText(t *testing.T) {
	var a, b array
	for _, x := range []int64{1, -1, 1 << 62} {
		a.int(x)
	}
	require.Equal(t, "{1,-1,4611686018427387904}", a.text())
	for _, x := range [][]byte{nil, {}, []byte("a\"\\\x00{}")} {
		b.bytes(x)
	}
	require.Equal(t, `{NULL,"\\x","\\x61225c007b7d"}`, b.text())
}
