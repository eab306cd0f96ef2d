// Package examples tests what all examples have in common.
package examples

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"
)

// secrets are variables that developers export. They must not change anything.
var secrets = []string{"GITHUB_TOKEN", "OPENAI_API_KEY", "SHOPIFY_TOKEN", "SHOPIFY_SHOP"}

// short are arguments that make an example quicker, and of less work for a machine.
var short = map[string][]string{
	"fleet": {"-workers", "2", "-seconds", "2"},
	"plan":  {"-calls", "500"},
	"retry": {"-calls", "20"},
	"watch": {"-for", "500ms"},
}

// lines are how many lines of code an example may have that has more than others.
var lines = map[string]int{"mysql": 160, "etcd": 170, "quickstart": 250, "plan": 400, "fleet": 500}

// needs says which variable -real needs to begin.
var needs = map[string]string{"github": "GITHUB_TOKEN", "llm": "OPENAI_API_KEY", "shopify": "SHOPIFY_SHOP"}

// programs is where the examples are, once build has built them.
var programs string

func TestMain(m *testing.M) {
	// The examples wait most of the time. All of them run at once, however few processors there are.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	status := m.Run()
	if programs != "" {
		_ = os.RemoveAll(programs)
	}
	os.Exit(status)
}

// build builds the examples for the first test that needs them: go test -list needs none.
var build = sync.OnceValue(func() error {
	var err error
	if programs, err = os.MkdirTemp("", "examples"); err != nil {
		return err
	}
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", programs, "./...").CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

// names builds the examples, and returns their names.
func names(t *testing.T) []string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds all examples")
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("*/main.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	var all []string
	for _, source := range sources {
		name := filepath.Dir(source)
		if _, err := os.Stat(filepath.Join(name, "go.mod")); err != nil { // else it is a module of its own
			all = append(all, name)
		}
	}
	return all
}

// run runs a program without a PATH, where there is no redis-server, and with more variables
// in its environment. It returns the program's output and status.
func run(t *testing.T, program string, env, args []string) (out, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append([]string{"HOME=" + os.TempDir(), "PATH="}, env...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// fits checks that a text begins with a sentence, has at most 60 columns, and is plain.
func fits(t *testing.T, text string) {
	t.Helper()
	if first, _, _ := strings.Cut(text, "\n"); !strings.HasSuffix(first, ".") {
		t.Errorf("the first line does not say what it shows: %q", first)
	}
	text = strings.ReplaceAll(text, "    \t", "        ")
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }); i >= 0 {
		t.Errorf("it has the control character %q", text[i])
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// With -h an example says how to start it. One argument too many is refused, and so is -real without
// a secret.
func TestExamples_TakeTheFlagH(t *testing.T) {
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(programs, name)
			out, help, status := run(t, program, nil, []string{"-h"})
			if status != 0 || out != "" || !strings.Contains(help, "\tgo run ./examples/"+name) {
				t.Errorf("status %d, %s%s", status, out, help)
			}
			fits(t, help)
			if out, stderr, status := run(t, program, nil, []string{"more"}); status != 2 || out != "" || stderr == "" {
				t.Errorf("with an argument: status %d, %s%s", status, out, stderr)
			}
			if need := needs[name]; need != "" {
				if _, stderr, status := run(t, program, nil, []string{"-real"}); status != 2 || !strings.Contains(stderr, "-real needs "+need) {
					t.Errorf("-real: status %d, %s", status, stderr)
				}
			}
		})
	}
}

// Each example runs, and neither calls another machine nor shows a secret. Any call to another
// machine would go to the proxy.
func TestExamples_RunWithoutSettings(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	var calls atomic.Int32
	go func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return // closed
			}
			calls.Add(1)
			_ = conn.Close()
		}
	}()
	env := []string{"HTTPS_PROXY=http://" + proxy.Addr().String(), "HTTP_PROXY=http://" + proxy.Addr().String()}
	for _, secret := range secrets {
		env = append(env, secret+"=canary")
	}
	t.Run("examples", func(t *testing.T) {
		for _, name := range names(t) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out, stderr, status := run(t, filepath.Join(programs, name), env, short[name])
				if status != 0 || out == "" {
					t.Errorf("status %d, %s", status, stderr)
				}
				fits(t, out)
				if strings.Contains(out+stderr, "canary") {
					t.Errorf("it shows a secret:\n%s%s", out, stderr)
				}
			})
		}
	})
	if n := calls.Load(); n > 0 {
		t.Errorf("%d calls to other machines", n)
	}
}

// An example shows one thing. Its tests do not count, nor do comments and blank lines.
func TestExamples_AreShort(t *testing.T) {
	sources, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	code := map[string]int{}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				code[filepath.Dir(source)]++
			}
		}
	}
	for name, n := range code {
		if most := cmp.Or(lines[name], 150); n > most {
			t.Errorf("%s has %d lines of code, and may have %d", name, n, most)
		}
	}
}
