// Command peers measures dripfeed and other rate limiters for Go in one run, and prints the medians
// and their ratios as Markdown tables. Contenders take turns, round by round, so that a disturbance
// of the machine affects all of them. With -against, the contenders are dripfeed in this tree and
// dripfeed in another.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"time"
)

func main() {
	if childMain() {
		return
	}
	o := options{Idle: time.Second}
	flag.IntVar(&o.Rounds, "rounds", 0, "turns that each contender takes, of which the tables show the medians (default 5, with -against 10)")
	flag.DurationVar(&o.Benchtime, "benchtime", 200*time.Millisecond, "least time of a measurement")
	flag.IntVar(&o.Keys, "keys", 1_000_000, "most keys, up to a million")
	flag.IntVar(&o.Waiters, "waiters", 100_000, "goroutines that wait")
	flag.IntVar(&o.Window, "window", 5000, "calls of the larger windows, at least 400; the smaller have a fifth")
	flag.StringVar(&o.Against, "against", "", "compare dripfeed with that of another tree, whose root is this `directory`, instead of with other libraries")
	flag.BoolVar(&o.Strict, "strict", false, "with -against: fail if a row of this tree is worse")
	fleets := flag.Duration("fleets", 0, "measure fleets of ten stores behind lines that delay, each for this time, and nothing else")
	only := flag.String("only", "", "measure only what matches this regular expression, as in 'admitted.*/x/time'; names appear while it runs")
	flag.Parse()
	if o.Rounds == 0 {
		switch o.Rounds = 5; {
		case *fleets > 0:
			o.Rounds = 3
		case o.Against != "":
			o.Rounds = 10
		}
	}

	match, err := regexp.Compile(*only)
	if err == nil && *fleets > 0 {
		err = measureFleets(os.Stdout, os.Stderr, o, *fleets, match)
	} else if err == nil {
		err = run(os.Stdout, os.Stderr, o, match)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run measures, and prints tables to w and its progress to progress.
func run(w, progress io.Writer, o options, only *regexp.Regexp) error {
	if o.Rounds < 1 || o.Keys < 1 || o.Keys > 1_000_000 || o.Waiters < 2 {
		return fmt.Errorf("rounds %d, keys %d or waiters %d out of range", o.Rounds, o.Keys, o.Waiters)
	}
	if o.Against == "" && o.Strict {
		return errors.New("-strict is for -against")
	}
	if o.Against != "" && o.Rounds < fewestRounds {
		return fmt.Errorf("-against needs %d rounds: fewer show chance", fewestRounds)
	}
	all, lacks, err := newServers()
	if err != nil {
		return err
	}
	if all.redis != nil {
		defer all.redis.stop()
	}
	if all.postgres != nil {
		defer all.postgres.stop()
	}
	for _, lack := range lacks {
		fmt.Fprintln(progress, lack)
	}
	compare := besideOthers
	if o.Against != "" {
		compare = againstTree
	}
	if err := compare(w, progress, contests(o, all), o, only); err != nil {
		return err
	}
	for _, lack := range lacks {
		fmt.Fprintf(w, "\n%v\n", lack)
	}
	return nil
}

// besideOthers measures dripfeed and the other libraries.
func besideOthers(w, progress io.Writer, contests []contest, o options, only *regexp.Regexp) error {
	var columns []*column
	for _, c := range contests {
		for _, s := range c.scenarios {
			added, err := measure(progress, s, o, c.list, only)
			if err != nil {
				return err
			}
			columns = append(columns, added...)
		}
	}
	writeMachine(w, o)
	writeTables(w, columns)
	writeSubject(w, columns)
	return nil
}

func writeMachine(w io.Writer, o options) {
	fmt.Fprintf(w, "%s %s/%s, %d CPUs, GOMAXPROCS %d; medians of %d rounds\n\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0), o.Rounds)
}

// measure measures all contenders that can do a scenario. It returns the scenario's columns, or
// none if -only leaves out all contenders.
func measure(progress io.Writer, s scenario, o options, list []contender, only *regexp.Regexp) ([]*column, error) {
	columns := make([]*column, len(s.metrics))
	for i, m := range s.metrics {
		columns[i] = &column{section: s.section, metric: m, list: list, cells: map[string]*cell{}}
	}
	turn := s.measure
	if s.apart {
		turn = func(c contender) (sample, error) {
			return errand{Options: o, Scenario: s.name, Contender: c.name}.ownProgram()
		}
	}
	for round := range o.Rounds {
		for _, c := range list {
			name := s.name + "/" + c.name
			if !s.offered(c) || !only.MatchString(name) {
				continue
			}
			fmt.Fprintf(progress, "round %d: %s\n", round+1, name)
			runtime.GC()
			got, err := turn(c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if len(got.Values) != len(columns) {
				return nil, fmt.Errorf("%s: %d values for %d columns", name, len(got.Values), len(columns))
			}
			for i, v := range got.Values {
				columns[i].add(c.name, v, got.Wrong)
			}
		}
	}
	if len(columns[0].cells) == 0 {
		return nil, nil
	}
	return columns, nil
}
