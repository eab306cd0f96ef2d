// Package cli is the main function that the examples share: flags, help, an interrupt and the exit
// status.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Example is a program.
type Example struct {
	Name string
	// Usage is a sentence that says what the program shows, and how to start it.
	Usage string
	// New adds the program's flags, and returns what it does when they are set. What it does may
	// begin by checking them: see [Wrong].
	New func(*flag.FlagSet) Run
}

// Run writes to out what a program shows, until ctx ends.
type Run func(ctx context.Context, out io.Writer) error

// NoFlags is the New of a program without flags.
func NoFlags(run Run) func(*flag.FlagSet) Run {
	return func(*flag.FlagSet) Run { return run }
}

// Main runs the program, and ends the process.
func (e *Example) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process immediately
	os.Exit(e.Exec(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exec runs the program, and returns its exit status: 0; 1 after an error; 2 if the arguments are
// wrong.
func (e *Example) Exec(ctx context.Context, args []string, out, stderr io.Writer) int {
	flags := flag.NewFlagSet(e.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, e.Usage, "\n\n")
		flags.PrintDefaults()
	}
	run := e.New(flags)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "%s: %q is one argument too many\n", e.Name, flags.Arg(0))
		return 2
	}
	err := run(ctx, out)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %v\n", e.Name, err)
	if errors.As(err, new(wrong)) {
		return 2
	}
	return 1
}

type wrong string

func (w wrong) Error() string { return string(w) }

// Wrong returns an error that says what is wrong with the arguments.
func Wrong(format string, args ...any) error { return wrong(fmt.Sprintf(format, args...)) }

// Number adds a flag for a number within bounds. What n points to is its default.
func Number[N int | float64](flags *flag.FlagSet, n *N, name string, least, most N, usage string) {
	flags.Func(name, fmt.Sprintf("`N`, %v to %v: %s (default %v)", least, most, usage, *n), func(text string) error {
		var got N
		if json.Unmarshal([]byte(text), &got) != nil || got < least || got > most { // JSON has no NaN
			return fmt.Errorf("want a number from %v to %v", least, most)
		}
		*n = got
		return nil
	})
}
