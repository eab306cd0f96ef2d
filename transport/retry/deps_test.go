package retry

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that does not import this package gets neither retryablehttp nor what that needs.
func TestDeps_OnlyThisPackageImportsRetryablehttp(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}}: {{.Imports}}", "./...")
	cmd.Dir = "../.."
	out := must(cmd.Output())
	var found []string
	for line := range strings.Lines(string(out)) {
		if path, imports, _ := strings.Cut(line, ":"); strings.Contains(imports, "hashicorp/") {
			found = append(found, path)
		}
	}
	require.Equal(t, []string{"github.com/dripfeed/dripfeed/transport/retry"}, found)
}
