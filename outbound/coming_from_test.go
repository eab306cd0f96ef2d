package outbound

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// comingFrom is the page whose tables have others' words in the first column, and dripfeed's
// in the second.
const comingFrom = "COMING_FROM.md"

// ourCode returns the code in the second column of a page's tables.
func ourCode(page string) []string {
	var all []string
	for line := range strings.Lines(page) {
		if cells := strings.Split(line, "|"); strings.HasPrefix(line, "|") && len(cells) > 3 {
			all = append(all, cellCode("|"+cells[2])...)
		}
	}
	return all
}

// member is a field or a method of a type, and name what the package has.
var (
	member = regexp.MustCompile(`^((?:queue\.)?[A-Z]\w*(?:\[string\])?)\.([A-Z]\w*)$`)
	name   = regexp.MustCompile(`^[A-Z]\w*$`)
)

// comingFromProgram returns a program of the code: its calls run, and of the names between
// them each Type.Member is looked for. unknown are the names that nothing has.
func comingFromProgram(t *testing.T, code []string) (text string, calls int, unknown []string) {
	t.Helper()
	text, calls = cellProgram(code)
	own := exported(t, ".")
	for _, c := range code {
		pkg, _, _ := strings.Cut(c, ".")
		m := member.FindStringSubmatch(c)
		switch {
		case strings.ContainsAny(c, "({") || c == "ctx" || c == "store":
		case m != nil:
			text += fmt.Sprintf("\nfunc _(x %s) { _ = x.%s }\n", m[1], m[2])
		case name.MatchString(c) && own[c]:
		case folders[pkg] != "" && len(missing(t, []string{c})) == 0:
		default:
			unknown = append(unknown, c)
		}
	}
	return text, calls, unknown
}

func TestComingFrom_NamesExist(t *testing.T) {
	page, err := os.ReadFile(comingFrom)
	if err != nil {
		t.Fatal(err)
	}
	code := ourCode(string(page))
	text, calls, unknown := comingFromProgram(t, code)
	if len(code) < 80 || calls < 50 {
		t.Fatalf("%d cells with code, %d calls: they are not found", len(code), calls)
	}
	if len(unknown) > 0 {
		t.Errorf("there is no %q", unknown)
	}
	if out, err := runCells(t, text); err != nil {
		t.Errorf("%v\n%s%s", err, out, text)
	}
}

// The check of the page must be able to fail.
func TestComingFrom_CheckCanFail(t *testing.T) {
	const page = "| `theirs()` | `bucket.State(ctx)` and `State.Left`, `Permit.Settle` | `notes()` |\n| a | `Nothing`, `queue.Nothing`, `nothing`, `ErrThrottled` |\n"
	code := ourCode(page)
	text, calls, unknown := comingFromProgram(t, code)
	if got := strings.Join(code, " "); got != "bucket.State(ctx) State.Left Permit.Settle Nothing queue.Nothing nothing ErrThrottled" || calls != 1 {
		t.Errorf("found %s, %d calls", got, calls)
	}
	if got := strings.Join(unknown, " "); got != "Nothing queue.Nothing nothing" {
		t.Errorf("unknown: %s", got)
	}
	if out, err := runCells(t, text); err == nil || !strings.Contains(out, "x.Left undefined") || strings.Contains(out, "Settle") {
		t.Errorf("%v\n%s", err, out)
	}
}
