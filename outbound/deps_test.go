package outbound

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/dripfeed/dripfeed"

// list runs go list in the module's root and returns the lines of its answer.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
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
func TestCoreImportsOnlyTheStandardLibrary(t *testing.T) {
	core := []string{"./outbound", "./outbound/fallback", "./outbound/leak", "./queue", "./queue/line", "./transport"}
	seen := map[string]bool{}
	for _, line := range list(t, append([]string{"-deps", "-test", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, core...)...) {
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

func TestOnlyXrateImportsTheRateLimiter(t *testing.T) {
	found := false
	for _, line := range list(t, "-f", "{{.ImportPath}}: {{.Imports}}", "./...") {
		path, imports, _ := strings.Cut(line, ":")
		if !strings.Contains(imports, "golang.org/x/time/") {
			continue
		}
		if path != module+"/outbound/xrate" {
			t.Errorf("%s imports golang.org/x/time", path)
		}
		found = true
	}
	if !found {
		t.Error("outbound/xrate is not listed, so nothing was checked")
	}
}
