package redistest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The package imports libraries for tests, which do not belong in users'
// binaries.
func TestPackage_IsImportedByTestsOnly(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}", "./...")
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	packages := 0
	for line := range strings.Lines(string(out)) {
		path, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		require.NotContains(t, imports, "/internal/redistest", path)
		packages++
	}
	require.Greater(t, packages, 5)
}
