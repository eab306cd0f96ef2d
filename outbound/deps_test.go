package outbound

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dripfeed/dripfeed"

// listed runs go list in the module's root and returns the lines of its answer.
func listed(t *testing.T, args ...string) []string {
	t.Helper()
	return listIn(t, "..", args...)
}

func listIn(t *testing.T, dir string, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// Users of these packages get nothing else into their builds, and nothing else
// to trust.
func TestDeps_CoreImportsOnlyTheStandardLibrary(t *testing.T) {
	core := []string{"./outbound", "./outbound/fallback", "./outbound/store", "./outbound/watch", "./queue", "./queue/jobs", "./transport"}
	seen := map[string]bool{}
	for _, line := range listed(t, append([]string{"-deps", "-test", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, core...)...) {
		// A package built for a test is listed as "path [of the test]", and
		// its main package as "path.test".
		path, _, _ := strings.Cut(line, " ")
		if !ours(path) {
			t.Errorf("%s is reached, which is neither in the standard library nor here", path)
		}
		seen[path] = true
	}
	for _, dir := range core {
		if path := module + strings.TrimPrefix(dir, "."); !seen[path] {
			t.Errorf("%s is not listed, so nothing was checked", path)
		}
	}
}

// One example shows it.
func TestDeps_OnlyXrateImportsXTime(t *testing.T) {
	found := false
	for _, line := range listed(t, "-f", "{{.ImportPath}}: {{.Imports}}", "./...") {
		path, imports, _ := strings.Cut(line, ":")
		if !strings.Contains(imports, "golang.org/x/time/") {
			continue
		}
		if path != module+"/outbound/xrate" && path != module+"/examples/xtime" {
			t.Errorf("%s imports golang.org/x/time", path)
		}
		found = true
	}
	if !found {
		t.Error("outbound/xrate is not listed, so nothing was checked")
	}
}

// What asynq, River, Temporal and OpenTelemetry need is in modules of their own. If it came into this module's go.mod,
// each user's go.sum would grow, and versions of what he has would rise.
func TestDeps_UsersGetNoJobSystemAndNoTelemetry(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	must(t, err)
	if _, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil { // so that a new one runs the test again
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	must(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  fmt.Sprintf("module user\n\ngo 1.26.0\n\nrequire %s v0.0.0\n\nreplace %[1]s => %q\n", module, root),
		"go.sum":  string(sums),
		"main.go": fmt.Sprintf("package main\n\nimport (\n\t_ %q\n\t_ %q\n)\n\nfunc main() {}\n", module+"/outbound", module+"/queue"),
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	all := listIn(t, dir, "-mod=mod", "-m", "-f", "{{.Path}}", "all")
	if !slices.Contains(all, module) {
		t.Errorf("the module itself is not listed, so nothing was checked: %v", all)
	}
	for _, path := range all {
		for _, word := range []string{"asynq", "riverqueue", "temporal", "grpc", "pgx", "opentelemetry", "prometheus", "protobuf"} {
			if strings.Contains(path, word) {
				t.Errorf("%s is required", path)
			}
		}
	}
}
