package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
)

// Help has the status 0, an error 1, and wrong arguments have 2 and print nothing.
func TestExample_ChecksArguments(t *testing.T) {
	n, rate := 3, 1.5
	e := Example{Name: "example", Usage: "It shows something.", New: func(flags *flag.FlagSet) Run {
		n, rate = 3, 1.5
		Number(flags, &n, "n", 1, 1000, "things")
		Number(flags, &rate, "rate", 0.01, 100, "in a second")
		return func(_ context.Context, out io.Writer) error {
			if n == 14 {
				return Wrong("-n needs no %d", n)
			}
			if n == 13 {
				return errors.New("bad luck")
			}
			fmt.Fprint(out, n, " ", rate)
			return nil
		}
	}}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"", 0, "3 1.5"},
		{"-n 5 -rate 0.01", 0, "5 0.01"},
		{"-n 13", 1, "example: bad luck\n"},
		{"-n 14", 2, "example: -n needs no 14\n"},
		{"-h", 0, "It shows something.\n\n"},
		{"-h", 0, "N, 1 to 1000: things (default 3)"},
		{"more", 2, `example: "more" is one argument too many`},
		{"-nonsense", 2, "not defined"},
		{"-n 1001", 2, "a number from 1 to 1000"},
		{"-n 1.5", 2, "a number from 1 to 1000"},
		{"-rate NaN", 2, "a number from 0.01 to 100"},
		{"-rate -1", 2, "a number from 0.01 to 100"},
	} {
		var out, stderr bytes.Buffer
		status := e.Exec(t.Context(), strings.Fields(c.args), &out, &stderr)
		if text := out.String() + stderr.String(); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%q: status %d, want %d and %q:\n%s", c.args, status, c.status, c.says, text)
		}
		if status == 2 && out.Len() > 0 {
			t.Errorf("%q: printed %q", c.args, &out)
		}
	}
}
