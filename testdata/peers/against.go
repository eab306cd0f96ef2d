package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	module   = "github.com/dripfeed/dripfeed"
	thisTree = "../.." // as seen from this program's source
)

// againstTree measures dripfeed in this tree and in another one. Both take turns at
// each row, in a process of its own for each turn. Which tree is first changes from
// round to round.
func againstTree(w, progress io.Writer, contests []contest, o options, only *regexp.Regexp) error {
	// An interrupt ends the measurement, so that the built programs are removed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	tmp, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	this, other := filepath.Join(tmp, "this"), filepath.Join(tmp, "other")
	if err := errors.Join(build(ctx, thisTree, this), build(ctx, o.Against, other)); err != nil {
		return err
	}

	var rows []*row
	for _, contest := range contests {
		for _, s := range contest.scenarios {
			for _, c := range contest.list {
				if !strings.HasPrefix(c.name, subject) || !s.offered(c) || !only.MatchString(s.name+"/"+c.name) {
					continue
				}
				added, err := duel(ctx, progress, s, c, o, this, other)
				if err != nil {
					return err
				}
				rows = append(rows, added...)
			}
		}
	}
	if len(rows) == 0 {
		return errors.New("-only matches no row of dripfeed")
	}
	writeMachine(w, o)
	worse := writeRows(w, rows)
	fmt.Fprintf(w, "\n%d of %d rows are worse than in %s\n", worse, len(rows), o.Against)
	if o.Strict && worse > 0 {
		return errors.New("this tree is worse")
	}
	return nil
}

// duel measures one scenario by both programs, alternately.
func duel(ctx context.Context, progress io.Writer, s scenario, c contender, o options, this, other string) ([]*row, error) {
	rows := make([]*row, len(s.metrics))
	for i, m := range s.metrics {
		rows[i] = &row{name: s.section + ": " + m.name + strings.TrimPrefix(c.name, subject), metric: m}
	}
	for round := range o.Rounds {
		fmt.Fprintf(progress, "round %d: %s/%s\n", round+1, s.name, c.name)
		for turn := range 2 {
			own := (round+turn)%2 == 0
			program := other
			if own {
				program = this
			}
			e := errand{Options: o, Scenario: s.name, Contender: c.name}
			got, err := e.in(ctx, program)
			// A server that gets no processor for a second fails a measurement. Such a failure must not
			// cost all earlier measurements.
			for again := 0; err != nil && again < 2 && ctx.Err() == nil; again++ {
				fmt.Fprintf(progress, "once more: %v\n", err)
				got, err = e.in(ctx, program)
			}
			if err != nil {
				return nil, fmt.Errorf("%s/%s: %w", s.name, c.name, err)
			}
			if len(got.Values) == 0 {
				fmt.Fprintf(progress, "left out, because a tree lacks it: %s/%s\n", s.name, c.name)
				return nil, nil
			}
			for i, v := range got.Values {
				rows[i].add(own, v, got.Allocated)
				rows[i].wrong = max(rows[i].wrong, got.Wrong)
				got.Allocated = nil // it belongs to the first metric
			}
		}
	}
	return rows, nil
}

// build compiles this program's own source with a tree's dripfeed.
func build(ctx context.Context, tree, program string) error {
	tree, err := filepath.Abs(tree)
	if err != nil {
		return err
	}
	for _, name := range []string{"mod", "sum"} {
		text, err := os.ReadFile("go." + name)
		if err != nil {
			return fmt.Errorf("-against compiles this program: run in testdata/peers: %w", err)
		}
		if err := os.WriteFile(program+"."+name, text, 0o600); err != nil {
			return err
		}
	}
	for _, arguments := range [][]string{
		{"mod", "edit", "-replace=" + module + "=" + tree, program + ".mod"},
		{"build", "-mod=mod", "-modfile=" + program + ".mod", "-buildvcs=false", "-o", program, "."},
	} {
		if out, err := exec.CommandContext(ctx, "go", arguments...).CombinedOutput(); err != nil {
			return fmt.Errorf("with the tree %s: %w\n%s", tree, err, out)
		}
	}
	return nil
}
