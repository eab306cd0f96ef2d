package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

// outcome is what -json writes.
type outcome struct {
	Began      time.Time         `json:"began"`
	Parameters params            `json:"parameters"`
	API        string            `json:"api"`
	Bucket     string            `json:"bucket"`
	Redis      string            `json:"redis,omitempty"`
	Versions   map[string]string `json:"versions"`
	Modes      []result          `json:"modes"`
}

// result is what one way has brought.
type result struct {
	Mode     mode    `json:"mode"`
	Seconds  float64 `json:"seconds"`
	Answered int     `json:"answered"`
	Refused  int     `json:"refused"` // with 429
	Failed   int     `json:"failed"`
	Error    string  `json:"error,omitempty"` // the first failure
	Used     float64 `json:"quota_used"`      // part of burst + rate * seconds
	Jain     float64 `json:"fairness"`        // of the calls answered, over the workers: 1/N to 1
	WaitP50  float64 `json:"wait_p50_seconds"`
	WaitP99  float64 `json:"wait_p99_seconds"` // both to 1 %
	// The scripts that Redis ran in this way, and by whose count. If others use the server,
	// too, their scripts count among them.
	Commands  int     `json:"redis_commands"`
	CountedBy string  `json:"redis_commands_counted_by,omitempty"`
	PerCall   float64 `json:"redis_commands_per_call"`
	Kills     []kill  `json:"kills"`
	Workers   []tally `json:"workers"`
	// The count of our own API.
	Admitted *int `json:"api_admitted,omitempty"`
	Rejected *int `json:"api_refused,omitempty"`
}

// tally is what the workers of one place have reported, one after the other.
type tally struct {
	Name     string `json:"name"` // X-Worker
	Answered int    `json:"answered"`
	Refused  int    `json:"refused"`
	Failed   int    `json:"failed"`
	Error    string `json:"error,omitempty"`
	Killed   int    `json:"killed"`
}

func (t *tally) add(r report) {
	t.Answered += r.Answered
	t.Refused += r.Refused
	t.Failed += r.Failed
	if t.Error == "" {
		t.Error = r.Error
	}
}

func newOutcome(p params, redis *server) outcome {
	o := outcome{
		Began:      time.Now(),
		Parameters: p,
		API:        fmt.Sprintf("its own, a bucket: %.6g at once, %.6g/s", p.apiCapacity(), p.Rate),
		Bucket:     p.limit().String(),
		Versions: map[string]string{
			"dripfeed": moduleVersion(""),
			"go":       runtime.Version(),
			"go-redis": moduleVersion("github.com/redis/go-redis/v9"),
			"platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
		Modes: []result{},
	}
	if p.api != "" {
		o.API = "the server of -api"
	}
	if redis != nil {
		o.Redis = redis.what
	}
	return o
}

// moduleVersion is the version of a module in this program; "": the program's own.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if path == "" {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}

// write writes the outcome as JSON; "" writes nothing.
func (o *outcome) write(file string, stdout io.Writer) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err = stdout.Write(text)
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// verdict says what did not go as it should, in a remark for each way. It returns an error if
// a way has not brought a single answer, and with -strict if there is any remark.
func (o *outcome) verdict() (remarks []string, err error) {
	for _, r := range o.Modes {
		if r.Failed > 0 {
			remarks = append(remarks, fmt.Sprintf("%s: %d calls have failed, the first with: %s", r.Mode, r.Failed, r.Error))
			if r.Answered == 0 {
				err = errors.New("not one call was answered")
			}
		}
		if n := r.refusals(); r.Mode == shared && n > 0 {
			remarks = append(remarks, fmt.Sprintf("%s: the API has refused %d calls", r.Mode, n))
		}
	}
	if o.Parameters.strict && len(remarks) > 0 && err == nil {
		err = errors.New("-strict allows none of this")
	}
	return remarks, err
}

// refusals is how many calls the API has refused: by the API's count, if it is ours.
func (r *result) refusals() int {
	if r.Rejected != nil {
		return *r.Rejected
	}
	return r.Refused
}

// result returns what the trial has brought so far.
func (t *trial) result() result {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := result{Mode: t.order.Mode, Kills: slices.Clone(t.kills), Seconds: t.took.Seconds()}
	if t.took == 0 && !t.began.IsZero() {
		r.Seconds = time.Since(t.began).Seconds()
	}
	if r.Kills == nil {
		r.Kills = []kill{}
	}
	shares := make([]float64, 0, len(t.slots))
	for _, s := range t.slots {
		r.Workers = append(r.Workers, s.tally)
		r.Answered += s.tally.Answered
		r.Refused += s.tally.Refused
		r.Failed += s.tally.Failed
		if r.Error == "" {
			r.Error = s.tally.Error
		}
		shares = append(shares, float64(s.tally.Answered))
	}
	within := r.Answered
	if t.api != nil {
		now := t.api.Report()
		r.Admitted, r.Rejected = &now.Admitted, &now.Refused
		within = now.Admitted
		if t.took > 0 {
			within = t.within
		}
	}
	if r.Seconds > 0 {
		r.Used = float64(within) / (t.Burst + t.Rate*r.Seconds)
	}
	r.Jain = jain(shares)
	r.WaitP50, r.WaitP99 = t.waits.quantile(0.5).Seconds(), t.waits.quantile(0.99).Seconds()
	t.price(&r)
	return r
}

// price computes what the calls have cost Redis. The caller holds mu.
func (t *trial) price(r *result) {
	switch {
	case t.redis == nil:
		return
	case t.counted:
		r.Commands, r.CountedBy = t.served, "server"
	default:
		r.Commands, r.CountedBy = t.sent, "workers"
	}
	if n := r.Answered + r.Refused; n > 0 {
		r.PerCall = float64(r.Commands) / float64(n)
	}
}

// jain is Jain's index of fairness: 1 if all have the same, 1/n if one has it all.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}
