package outbound

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dripfeed/dripfeed"

// listed runs go list in the module's root and returns the lines of its answer.
func listed(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	fatalIf(t, err != nil, "%v: %v\n%s", cmd, err, stderr.String())
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// Users of these packages build and trust nothing else.
func TestDeps_CoreImportsOnlyTheStandardLibrary(t *testing.T) {
	core := []string{"./outbound", "./outbound/fallback", "./outbound/store", "./outbound/watch", "./queue", "./queue/jobs", "./transport"}
	seen := map[string]bool{}
	for _, line := range listed(t, append([]string{"-deps", "-test", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, core...)...) {
		// A package built for a test is listed as "path [of the test]", and its main package as "path.test".
		path, _, _ := strings.Cut(line, " ")
		errorIf(t, !ours(path), "%s is reached, which is neither in the standard library nor here", path)
		seen[path] = true
	}
	for _, dir := range core {
		path := module + strings.TrimPrefix(dir, ".")
		errorIf(t, !seen[path], "%s is not listed, so nothing was checked", path)
	}
}

// The layers of ARCHITECTURE.md, from top to bottom: each package imports only layers below its own, and the page has all
// packages that outbound is made of.
func TestDeps_NoLayerImportsOneAboveIt(t *testing.T) {
	page, err := os.ReadFile("ARCHITECTURE.md")
	must(t, err)
	_, page, _ = bytes.Cut(page, []byte("## Layers\n\n"))
	page, _, _ = bytes.Cut(page, []byte("\n\n"))
	layer := map[string]int{}
	for i, line := range strings.Split(string(page), "\n") {
		names, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		for name := range strings.SplitSeq(names, ", ") {
			layer[module+"/"+name], layer[module+"/outbound/"+name] = i, i // one of them is a package
		}
	}
	seen := 0
	for _, line := range listed(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		path, imports, _ := strings.Cut(line, " ")
		mine, known := layer[path]
		if strings.HasPrefix(path, module+"/outbound/internal/") && !strings.Contains(path, "test") {
			errorIf(t, !known, "the page lacks %s", path)
		}
		if !known {
			continue
		}
		seen++
		for _, other := range strings.Fields(imports) {
			at, known := layer[other]
			errorIf(t, known && at < mine, "%s imports %s, which is above it", path, other)
		}
	}
	errorIf(t, seen < len(strings.Split(string(page), "\n")), "of the page's packages only %d are listed", seen)
}

// Only package xrate and the example of it import golang.org/x/time.
func TestDeps_OnlyXrateImportsXTime(t *testing.T) {
	found := false
	for _, line := range listed(t, "-f", "{{.ImportPath}}: {{.Imports}}", "./...") {
		path, imports, _ := strings.Cut(line, ":")
		if !strings.Contains(imports, "golang.org/x/time/") {
			continue
		}
		errorIf(t, path != module+"/outbound/xrate" && path != module+"/examples/xtime",
			"%s imports golang.org/x/time", path)
		found = true
	}
	errorIf(t, !found, "outbound/xrate is not listed, so nothing was checked")
}

// What asynq, River, Temporal and OpenTelemetry need is in modules of their own. If it were in this module's go.mod, each
// user's go.sum would grow, and versions of the user's modules would rise.
func TestDeps_UsersGetNoJobSystemAndNoTelemetry(t *testing.T) {
	all := listed(t, "-m", "-f", "{{.Path}}", "all")
	errorIf(t, !slices.Contains(all, module), "the module itself is not listed, so nothing was checked: %v", all)
	for _, path := range all {
		for _, word := range []string{"asynq", "riverqueue", "temporal", "grpc", "pgx", "opentelemetry", "prometheus", "protobuf"} {
			errorIf(t, strings.Contains(path, word), "%s is required", path)
		}
	}
}
