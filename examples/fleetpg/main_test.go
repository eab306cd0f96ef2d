package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/workers"
)

func TestMain(m *testing.M) {
	workers.Work(bucket)
	if os.Getenv("FLEETPG_TEST") == "program" {
		main()
	}
	os.Exit(m.Run())
}

// A program that is terminated, or has lost a worker, ends with an error, and leaves nothing behind.
func TestProgram_LeavesNothing(t *testing.T) {
	if _, err := programs(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	for name, harm := range map[string]func(t *testing.T, program *os.Process){
		"terminated": func(t *testing.T, program *os.Process) {
			if err := program.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		},
		"worker 0 has ended": func(t *testing.T, program *os.Process) {
			for begin, killed := time.Now(), false; !killed; time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > 10*time.Second {
					t.Fatal("it has no worker")
				}
				paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", program.Pid))
				for _, path := range paths {
					text, _ := os.ReadFile(path)
					for field := range strings.FieldsSeq(string(text)) {
						pid, _ := strconv.Atoi(field)
						if name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); name == os.Args[0] {
							killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
						}
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS != "linux" && name != "terminated" {
				t.Skip("it finds processes in /proc")
			}
			dir := t.TempDir()
			_ = os.Chmod(dir, 0o755) // the server may be another user's
			_ = os.Chmod(filepath.Dir(dir), 0o755)
			cmd := exec.Command(os.Args[0], "-workers", "1", "-seconds", "60")
			cmd.Env = append(os.Environ(), "FLEETPG_TEST=program", "TMPDIR="+dir)
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 1)); err != nil { // once the workers call
				t.Error(err)
			}
			harm(t, cmd.Process)
			_, _ = io.Copy(io.Discard, out)
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("%v: %s", err, &said)
			}
			if want := strings.ReplaceAll(name, "terminated", "interrupted"); !strings.Contains(said.String(), want) {
				t.Errorf("it says %q", &said)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}

func TestFleet_SharesItsQuota(t *testing.T) {
	if _, err := programs(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "fleetpg") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, end, err := start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for i := range 4 { // a busy machine may miss it for a while
		var out, stderr bytes.Buffer
		status := example.Exec(t.Context(), []string{"-db", url, "-workers", "3", "-seconds", "4.4", "-rate", "2", "-kill", "1"}, &out, &stderr)
		if status != 0 {
			t.Fatalf("status %d, %s\n%s", status, &stderr, &out)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > 61 {
				t.Errorf("more than 60 columns: %s", line)
			}
		}
		if regexp.MustCompile(`(?m)^shared +([5-9]\d|10\d)\.\d +\d+ +0 `).Match(out.Bytes()) {
			return
		}
		if i == 3 {
			t.Errorf("the quota is not used, or the API has refused a call:\n%s", &out)
		}
	}
}

func TestArguments_WrongOnesAreErrors(t *testing.T) {
	for _, args := range [][]string{{"more"}, {"-workers", "0"}, {"-rate", "NaN"}, {"-seconds", "-1"}, {"-unknown"}, {"-db", "postgres://127.0.0.1:1/?sslmode=disable&password=secret"}, {"-db", "no:secret@url"}} {
		var out, stderr bytes.Buffer
		status := example.Exec(t.Context(), args, &out, &stderr)
		if status != 2 || out.Len() > 0 || stderr.Len() == 0 || strings.Contains(stderr.String(), "secret") {
			t.Errorf("%v: status %d, %s%s", args, status, &stderr, &out)
		}
	}
	var help bytes.Buffer
	if status := example.Exec(t.Context(), []string{"-h"}, io.Discard, &help); status != 0 || !strings.Contains(help.String(), "go run -C examples/fleetpg .") {
		t.Errorf("-h: status %d: %s", status, &help)
	}
}
