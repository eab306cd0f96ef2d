package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// childEnv is the environment variable with the measurement for a copy of this program.
const childEnv = "PEERS_CHILD"

// An errand is one measurement, the value of that variable as JSON.
type errand struct {
	Options   options
	Scenario  string
	Contender string
	Fleet     *fleet // in place of a scenario
}

// ownProgram makes the measurement in a new process of this program.
func (e errand) ownProgram() (sample, error) {
	self, err := os.Executable()
	if err != nil {
		return sample{}, err
	}
	return e.in(context.Background(), self)
}

// in makes the measurement in a process of a program that begins with childMain.
func (e errand) in(ctx context.Context, program string) (s sample, err error) {
	order, err := json.Marshal(e)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, program)
	child.Env = append(os.Environ(), childEnv+"="+string(order))
	child.Stderr = os.Stderr
	out, err := child.Output()
	if err != nil {
		return s, fmt.Errorf("in a child process: %w", err)
	}
	err = json.Unmarshal(out, &s)
	return s, err
}

// childMain runs the errand in the environment, if there is one, and reports
// whether there was one.
func childMain() bool {
	order := os.Getenv(childEnv)
	if order == "" {
		return false
	}
	var e errand
	err := json.Unmarshal([]byte(order), &e)
	if err == nil {
		err = e.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// run makes the measurement in this process. If it needs a server, it starts its own.
func (e errand) run() error {
	all := servers{new(server), new(database)}
	defer all.redis.stop()
	defer all.postgres.stop()
	if e.Fleet != nil {
		got, err := e.Fleet.run(all.redis)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(got)
	}
	for _, contest := range contests(e.Options, all) {
		s := slices.IndexFunc(contest.scenarios, func(s scenario) bool { return s.name == e.Scenario })
		c := slices.IndexFunc(contest.list, func(c contender) bool { return c.name == e.Contender })
		if s < 0 || c < 0 || !contest.scenarios[s].offered(contest.list[c]) {
			continue
		}
		got, err := contest.scenarios[s].measure(contest.list[c])
		if errors.Is(err, errLacks) {
			fmt.Fprintln(os.Stderr, err)
			got, err = sample{}, nil
		}
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(got)
	}
	return fmt.Errorf("no contender %q has a row %q", e.Contender, e.Scenario)
}
