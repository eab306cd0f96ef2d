package redisstore

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound/internal/redistest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// twin plays random steps on one key of a server, and compares what the script leaves with what
// [store.Op.ApplyAt] makes of the same numbers.
type twin struct {
	*rand.Rand
	testing.TB
	rdb     *redis.Client
	key     key
	stored  store.Stored // the key, after its last step
	s, v, g string       // as the server keeps it
	seq     int64
	charges []store.Charge // the latest
	epoch   int64
	refuses bool // refusals come all the time
	leaky   bool // all limits are
	dense   bool // little time passes, and calls cost little, so that windows have many slots

	bids                                                           [3]store.Bid // of the processes
	who                                                            int
	hot, swapped, booked, slow, held, worn, trusted, shared, slots int
	worst                                                          float64
}

// limits returns one to four limits.
func (w *twin) limits() []store.Limit {
	all := make([]store.Limit, 1+w.IntN(4))
	for i := range all {
		all[i] = store.Limit{Name: string(rune('a' + i)), Unit: int8(i % 2), Capacity: []float64{1, 3, 10.5, 1000}[w.IntN(4)], Rate: []float64{0.1, 1, 77.7, 1e4}[w.IntN(4)]}
		kind := w.IntN(8)
		if w.dense { // the windows decide
			kind, all[i].Rate = min(i, w.IntN(2))*7, 1e4
		}
		if w.leaky {
			kind = 7
		}
		switch l := &all[i]; kind {
		case 0, 1, 2:
			l.Kind, l.Window = store.Window, time.Duration([]float64{1, 10, 3600}[w.IntN(3)]*1e9)
			if w.dense {
				l.Window = 2 * time.Second
			}
		case 3:
			l.Kind, l.Window = store.Fixed, time.Duration([]float64{1, 10}[w.IntN(2)]*1e9)
		case 4:
			l.Kind, l.Rate = store.Hourly+store.Kind(w.IntN(4)), 0
			if l.Kind > store.Hourly {
				l.Zone = []string{"UTC", "Europe/Berlin", "America/St_Johns"}[w.IntN(3)]
			}
		}
		if all[i].Window > 0 {
			all[i].Rate = all[i].Capacity / all[i].Window.Seconds()
		}
	}
	return all
}

// pass lets time pass, in that all times on the server that its clock is compared with go back.
func (w *twin) pass() {
	d := time.Duration(w.ExpFloat64() * math.Pow(10, 3+6*w.Float64())).Truncate(time.Microsecond)
	n := w.IntN(1000)
	if w.dense && n < 50 {
		n = w.IntN(1000)
	}
	switch {
	case n < 10:
		d += time.Duration(w.ExpFloat64() * 1e12).Truncate(time.Microsecond)
	case n < 40:
		d = -time.Duration(w.Int64N(int64(store.Wobble))).Truncate(time.Microsecond)
	case n < 50:
		d = -time.Duration(w.ExpFloat64() * 1e10).Truncate(time.Microsecond)
	case n < 200:
		d = 0
	case w.dense:
		d = time.Duration(w.ExpFloat64() * 1e7).Truncate(time.Microsecond)
	}
	if w.s == "" || d == 0 {
		return
	}
	back := func(text string, head int, at ...int) string {
		all := decode(text[head:])
		for _, i := range at {
			all[i] -= float64(d / 1000)
		}
		return text[:head] + string(numbers(nil, all...))
	}
	n, parts := len(w.stored.Limits), 0
	for i := range w.stored.Limits {
		if w.stored.Limits[i].Kind != store.Leaky {
			parts += 6
		}
	}
	if parts > 0 {
		parts += 6
	}
	all := decode(w.s[headSize:])
	times := []int{0}
	if all[13] != 0 { // there are slots
		times = append(times, 13)
		w.g = back(w.g, 0, 0)
	}
	if row := 14 + 2*n + parts; all[12] != 0 && all[row+2] != 0 { // there is a row
		times = append(times, row+6)
	}
	w.s = back(w.s, headSize, times...)
	f := reader{text: w.v}
	born, made := f.micros(), f.micros()
	w.v = madeAt(born-d, made-d, f.text)
	if w.IntN(40) == 0 { // the clock steps into another period
		by, at := float64(4e6*(w.IntN(3)-1)), 14+2*n
		all = decode(w.s[headSize:])
		for _, l := range w.stored.Limits {
			if l.Kind.Calendar() {
				all[at], all[at+1] = all[at]+by, all[at+1]+by
			}
			if l.Kind != store.Leaky {
				at += 6
			}
		}
		w.s = w.s[:headSize] + string(numbers(nil, all...))
	}
	w.set()
	for i := range w.charges {
		w.charges[i].Born -= d
	}
	w.epoch -= int64(d)
	if w.dense && w.stored.Limits[0].Kind == store.Window && w.IntN(40) == 0 {
		w.crowd()
	}
}

// crowd fills the first limit with almost as many slots as there can be.
func (w *twin) crowd() {
	p, l := &w.stored.State.Parts[0], &w.stored.Limits[0]
	p.Slots = nil
	first := w.stored.State.Dial() + time.Duration(w.Int64N(int64(time.Millisecond)))
	for range 120 + w.IntN(9) {
		p.Slots = append(p.Slots, store.Slot{End: first, Units: l.Capacity * w.Float64() / 64})
		first += 1 + time.Duration(w.Int64N(int64(l.Window/80)))
	}
	level := &w.stored.State.Level[0]
	*level = 0
	for _, t := range p.Slots {
		*level += t.Units
	}
	k, _ := newRow(w.stored, "token.", w.key.row)
	w.s, w.v, w.g = string(k.fields(time.Hour)), k.fixed, k.g
	w.set()
}

// set writes the key.
func (w *twin) set() {
	values := []any{"s", w.s, "v", w.v, "u", ""}
	if w.g != "" {
		values = append(values, "g", w.g)
	}
	require.NoError(w, w.rdb.HSet(context.Background(), w.key.name.(string), values...).Err())
	w.key.row = readRow(w.s, w.v, w.g)
	w.stored = w.key.row.stored
}

// decode returns all numbers of a text.
func decode(text string) (all []float64) {
	for f := (reader{text: text}); f.text != ""; {
		all = append(all, f.float())
	}
	return all
}

func (w *twin) units(limits []store.Limit) (n store.Units) {
	for i := range limits {
		if w.IntN(3) > 0 {
			share := []float64{0.01, 0.1, 1. / 3, 1, 1.02}[w.IntN(5)]
			if w.dense {
				share = 0.0125
			}
			n[i] = limits[i].Takes(limits[i].Capacity * share * min(1, 2*w.Float64()))
		}
	}
	return n
}

// take takes one of the latest charges, most often the last.
func (w *twin) take() *store.Charge {
	if len(w.charges) == 0 {
		return nil
	}
	i := len(w.charges) - 1
	if w.IntN(2) == 0 {
		i = w.IntN(len(w.charges))
	}
	c := w.charges[i]
	if w.IntN(4) > 0 {
		w.charges = slices.Delete(w.charges, i, i+1)
	}
	return &c
}

func (w *twin) report(limits []store.Limit, cold bool) (r store.Report, ok bool) {
	kinds := []store.ReportKind{store.Settled, store.Settled, store.Settled, store.Succeeded, store.Succeeded, store.Refused, store.Held}
	if w.refuses {
		kinds = []store.ReportKind{store.Settled, store.Succeeded, store.Succeeded, store.Refused, store.Refused}
	}
	if cold {
		kinds = []store.ReportKind{store.Paused, store.Remaining}
	}
	r = store.Report{Kind: kinds[w.IntN(len(kinds))], Charge: w.take(), Epoch: w.epoch, Reason: uint8(w.IntN(4))}
	if w.IntN(6) == 0 && !w.refuses {
		r.Epoch--
	}
	switch r.Kind {
	case store.Settled:
		if r.Charge == nil {
			return r, false
		}
		if r.Used = r.Charge.N; w.IntN(3) > 0 {
			r.Used = w.units(limits)
		}
		r.Charge.Settled = w.IntN(20) == 0
	case store.Remaining:
		r.Used = w.units(limits)
	case store.Succeeded:
		r.Charge = nil
	case store.Refused, store.Held:
		if w.refuses && r.Kind == store.Refused {
			r.MaxWait = 1 + time.Duration(w.ExpFloat64()*1e4)
			return r, true
		}
		if w.IntN(4) > 0 || w.dense && w.IntN(8) > 0 {
			return r, false // or nothing else would ever happen
		}
	}
	if w.IntN(2) == 0 {
		r.Wait = time.Duration(w.ExpFloat64() * math.Pow(10, 5+4*w.Float64()))
	}
	if w.IntN(2) == 0 || w.dense {
		r.MaxWait = time.Duration(w.ExpFloat64() * 1e8)
	}
	if w.dense { // no hold is long
		r.Wait, r.MaxWait = r.Wait/100, 1+r.MaxWait/10
	}
	return r, true
}

// periodOf returns the period of a limit that is so many after the one of t. Hours are of 4 s here,
// days of 3 s or 5 s, and months are months of the zone.
func periodOf(l *store.Limit, t time.Time, after int) (p store.Period) {
	long := int64(4)
	switch l.Kind {
	case store.Daily:
		long = 3 + int64(len(l.Zone)%2)*2
	case store.Monthly:
		zone, err := time.LoadLocation(l.Zone)
		if err != nil {
			panic(err)
		}
		y, m, _ := t.In(zone).Date()
		begin := func(n int) int64 { return time.Date(y, m+time.Month(after+n), 1, 0, 0, 0, 0, zone).Unix() }
		return store.Period{Begin: begin(0), End: begin(1), Next: begin(2)}
	}
	p.Begin = (t.Unix()/long + int64(after)) * long
	p.End, p.Next = p.Begin+long, p.Begin+2*long
	return p
}

func (w *twin) step() *store.Op {
	limits := w.stored.Limits
	op := &store.Op{Limits: limits, Number: w.stored.Number, Base: 7, Age: time.Duration(w.ExpFloat64() * 1e10), Weight: [...]float64{0, 1, 2, 0, 1, 2, 1e-300, 1e300}[w.IntN(8)]}
	if len(limits) == 0 {
		op.Limits = w.limits()
		limits = op.Limits
	}
	t, err := w.rdb.Time(context.Background()).Result()
	require.NoError(w, err)
	for i := range limits {
		p := periodOf(&limits[i], t, 0)
		if w.IntN(20) == 0 {
			p = periodOf(&limits[i], t, 1) // it is not that time yet
		}
		op.Periods = append(op.Periods, p)
	}
	cold := w.IntN(50) == 0 && (!w.dense || w.IntN(8) == 0)
	for w.IntN(3) == 0 || w.refuses && w.IntN(4) > 0 || cold && len(op.Reports) == 0 {
		if r, ok := w.report(limits, cold); ok {
			op.Reports = append(op.Reports, r)
		}
	}
	if w.IntN(8) == 0 {
		return op
	}
	op.Action = store.Book
	w.who = w.IntN(len(w.bids))
	op.Bid = w.bids[w.who]
	op.Bid.Last = w.IntN(2) == 0
	if cold && len(w.stored.Limits) > 0 {
		switch w.IntN(6) {
		case 0:
			op.Action = store.Resume
		case 1:
			op.Action, op.Own, op.Replacement = store.Replace, w.IntN(2) == 0, w.limits()
			return op
		case 2:
			op.Action, op.Costs = store.Meter, []store.Units{w.units(limits)}
			return op
		}
	}
	for range w.IntN(4) {
		u := w.units(limits)
		many := 1 + w.IntN(4)*w.IntN(8)
		if w.dense {
			many = 1 + w.IntN(2)
		}
		for range many {
			op.Costs = append(op.Costs, u)
		}
	}
	if w.IntN(2) == 0 {
		op.Wait, op.Horizon = time.Duration(w.ExpFloat64()*math.Pow(10, 6+4*w.Float64())), time.Duration(w.ExpFloat64()*math.Pow(10, 6+4*w.Float64()))
	}
	if w.IntN(4) == 0 {
		op.After = time.Duration(w.ExpFloat64() * 1e9)
		if w.dense {
			op.After /= 20
		}
	}
	if w.IntN(3) == 0 {
		op.Claim = []float64{1, 5, 40, math.Inf(1), math.NaN(), -1}[w.IntN(6)]
	}
	if w.IntN(4) == 0 {
		op.Headroom = []float64{0.1, 0.29, 0.5, 0.99}[w.IntN(4)]
	}
	if w.IntN(5) == 0 {
		op.Move = w.take()
	}
	for w.IntN(4) == 0 {
		if c := w.take(); c != nil {
			op.Unused = append(op.Unused, *c)
		}
	}
	return op
}

// play makes a step, and compares.
func (w *twin) play() {
	w.pass()
	op := w.step()
	ctx := context.Background()
	word := ""
	for attempt := 0; ; attempt++ {
		require.Less(w, attempt, 5, "%s: %+v\nfrom %+v", word, *op, w.stored)
		w.seq++
		clock := time.Duration(0)
		if w.key.row != nil {
			t, err := w.rdb.Time(ctx).Result()
			require.NoError(w, err)
			clock = time.Duration(t.UnixNano())
		}
		q := compose(&w.key, "wtwintwin", op, w.seq, w.IntN(10) == 0, clock, time.Millisecond)
		pipe := w.rdb.Pipeline()
		step := pipe.Do(ctx, q.args...)
		fields := pipe.HMGet(ctx, w.key.name.(string), "s", "v", "u", "g")
		_, _ = pipe.Exec(ctx)
		if redis.HasErrorPrefix(step.Err(), "NOSCRIPT") {
			require.NoError(w, w.rdb.ScriptLoad(ctx, script).Err())
			continue
		}
		require.NoError(w, step.Err(), "%+v\nfrom %+v", *op, w.stored)
		a, err := q.read(step.Val(), nil, new(store.Reply))
		require.NoError(w, err)
		if a.err != nil {
			word += a.word + " "
			if a.word == "cold" {
				w.worn++
			}
			w.key.cold = a.word == "cold" || a.word == "look" && q.mode == hot
			if a.row != nil {
				w.key.row = a.row
			}
			continue
		}
		w.key.cold = false
		w.compare(op, q, &a, fields.Val())
		return
	}
}

func (w *twin) compare(op *store.Op, q *request, a *answer, fields []any) {
	text := func(i int) string { s, _ := fields[i].(string); return s }
	old := w.s
	w.s, w.v, w.g = text(0), text(1)+text(2), text(3)
	is := readRow(w.s, w.v, w.g)
	require.False(w, a.differs, "%d calls at %v, which is another number: %+v\nfrom %+v", len(a.reply.Charges), a.now, *op, w.stored)
	require.False(w, a.reply.Corrupt, "%+v", *op)
	if q.mode == hot {
		w.hot++
		require.Equal(w, a.reply.Changed, a.wrote, "changed: %+v\nfrom %+v\nto %+v", *op, w.stored, a.reply.State)
	} else {
		w.swapped++
	}
	if !a.wrote {
		require.Equal(w, old, w.s)
	} else {
		want, got := &a.row.stored, &is.stored
		blur := time.Duration(0)
		if w.stored.State.Speed < 1 || want.State.Speed < 1 {
			w.slow++
			blur = 2
		}
		near := func(x, y time.Duration) bool { return x-y <= blur && y-x <= blur }
		about := func(x, y time.Duration) bool { return x-y <= max(1, blur) && y-x <= max(1, blur) } // many calls at once round otherwise
		g, h := got.State, want.State
		same := near(g.Skip, h.Skip) && about(g.Last, h.Last) && near(g.Rem, h.Rem) && math.Abs(g.Speed-h.Speed) < 1e-12 &&
			g.At == h.At && g.Born == h.Born && g.Epoch == h.Epoch && g.Fails == h.Fails && g.Why == h.Why && g.Top == h.Top && g.IDs == h.IDs &&
			g.Corrupt == h.Corrupt && math.Abs(got.Lead-want.Lead) <= 1e-9*want.Lead && got.Made == want.Made && got.Number == want.Number && got.Base == want.Base &&
			got.Set == want.Set && store.Equal(got.Limits, want.Limits)
		x, y := got.Opening, want.Opening
		same = same && about(x.At, y.At) && about(x.To, y.To)
		for _, d := range []float64{x.Bids - y.Bids, x.Calls - y.Calls, x.Done - y.Done, x.Took - y.Took} {
			same = same && math.Abs(d) <= 1e-9
		}
		r, o := g.Row, h.Row
		for _, d := range []float64{r.Top - o.Top, r.Per - o.Per, r.Fast - o.Fast} {
			same = same && math.Abs(d) <= 1e-9*max(1, o.Per)
		}
		same = same && r.Calls == o.Calls && r.Refused == o.Refused && r.Trust == o.Trust && r.Until == o.Until
		for i := range want.Limits {
			p, k := &g.Parts[i], &h.Parts[i]
			for _, d := range []float64{g.Level[i] - h.Level[i], g.Leaked[i] - h.Leaked[i], p.Ret - k.Ret, p.Over - k.Over, p.Owed - k.Owed} {
				d = math.Abs(d) / max(1, want.Limits[i].Capacity, math.Abs(k.Ret))
				d = max(0, d-3e-9*want.Limits[i].Rate) // so much leaks in 3 ns
				w.worst = max(w.worst, d)
				same = same && d <= 1e-12
			}
			same = same && p.Since == k.Since && len(p.Slots) == len(k.Slots) && about(p.Begin, k.Begin) && about(p.End, k.End) && near(p.Skip, k.Skip) &&
				p.Sure == k.Sure && math.Abs(p.Units-k.Units) <= 1e-9*want.Limits[i].Capacity
			for j := range min(len(p.Slots), len(k.Slots)) {
				same = same && about(p.Slots[j].End, k.Slots[j].End) && math.Abs(p.Slots[j].Units-k.Slots[j].Units) <= 1e-9*want.Limits[i].Capacity
			}
		}
		if !same {
			w.Fatalf("step %d: %+v\nfrom %+v\nto   %+v\nwant %+v", w.seq, *op, w.stored, *got, *want)
		}
	}
	w.key.row = is
	w.stored = is.stored
	w.booked += len(a.reply.Charges)
	if is.stored.State.Rem > 0 {
		w.held++
	}
	if is.stored.State.Row.Trust > 0 {
		w.trusted++
	}
	for i := range is.stored.State.Parts {
		w.slots = max(w.slots, len(is.stored.State.Parts[i].Slots))
	}
	w.epoch = a.reply.State.Epoch
	if w.bids[w.who] = a.reply.Bid; is.stored.Opening.Bids > op.Weight {
		w.shared++
	}
	w.charges = append(w.charges, a.reply.Charges...)
	w.charges = w.charges[max(0, len(w.charges)-8):]
}

// The script books as many calls as Op.ApplyAt, and leaves the state that it makes, except for the
// last bits: for random steps, from whatever state the script itself has left.
func TestScript_DoesWhatApplyDoes(t *testing.T) {
	steps := 20_000
	if testing.Short() {
		steps = 4_000
	}
	if os.Getenv("DRIPFEED_LONG") != "" {
		steps = 1_000_000
	}
	const each = 400
	server := redistest.Start(t, "--save", "") // a miniredis lacks cmsgpack, so the script makes no step there
	var sum twin
	for seed := range uint64(steps / each) {
		w := &twin{Rand: rand.New(rand.NewPCG(seed, 7)), TB: t, rdb: server.Client(t), refuses: seed%4 == 0, leaky: seed%3 == 0, dense: seed%3 == 1 && seed%4 != 0}
		w.key.name = "twin:" + string(binary.LittleEndian.AppendUint64(nil, rand.Uint64()))
		for range each {
			w.play()
		}
		w.rdb.Del(context.Background(), w.key.name.(string))
		_ = w.rdb.Close()
		sum.hot, sum.swapped, sum.booked = sum.hot+w.hot, sum.swapped+w.swapped, sum.booked+w.booked
		sum.slow, sum.held, sum.worn, sum.trusted, sum.shared, sum.worst = sum.slow+w.slow, sum.held+w.held, sum.worn+w.worn, sum.trusted+w.trusted, sum.shared+w.shared, max(sum.worst, w.worst)
		sum.slots = max(sum.slots, w.slots)
	}
	t.Logf("hot %d, swapped %d, booked %d, slowed %d, held %d, trusted %d, shared %d, at most %d slots, declined by the script %d, levels differ by at most %g of the capacity",
		sum.hot, sum.swapped, sum.booked, sum.slow, sum.held, sum.trusted, sum.shared, sum.slots, sum.worn, sum.worst)
	require.Greater(t, sum.hot, steps*9/10, "the script makes all steps but pauses, changes of limits and the like")
	require.Greater(t, min(sum.slow, sum.held, sum.booked), steps/50)
	require.True(t, sum.trusted > 0 || steps < 100_000, "a row of refusals that says nothing is rare")
}

// The script uses commands, their options, and functions that Redis 6.2 has, and nothing else. Each
// is listed here: look up since when a server has it before another one is added.
func TestScript_NeedsNoMoreThanRedis62(t *testing.T) {
	code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(script, "")
	require.False(t, strings.HasPrefix(script, "#!"), "since 7.0")
	within := func(pattern, allowed string) {
		t.Helper()
		known := " " + allowed + " "
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(code, -1) {
			require.Contains(t, known, " "+m[1]+" ", "%s", m[0])
		}
	}
	within(`call\(\s*'(\w+)'`, "DEL HDEL HGET HGETALL HLEN HMGET HSET PEXPIRE TIME")
	within(`'([A-Z]{2,})'`, "DEL HDEL HGET HGETALL HLEN HMGET HSET PEXPIRE TIME") // no options: NX, XX, GT, LT of PEXPIRE are of 7.0
	require.NotRegexp(t, `(?:\b|redis\.p)call\(\s*[^'\s]`, code, "a command that this test does not see")
	within(`\b((?:redis|server|string|table|os|struct|cjson|cmsgpack|bit|debug|coroutine)\.\w+)`,
		"redis.call redis.pcall string.format string.gsub string.match string.sub table.insert table.remove table.sort")
	within(`\b(math\.\w+)`, "math.ceil math.exp math.floor math.fmod math.huge math.log math.max math.min")
	within(`\b(lib\.\w+)`, "lib.pack lib.unpack") // cmsgpack
	// Functions: Lua 5.1's, and the script's own.
	names := []string{"function", "rawget", "pcall", "tonumber", "type", "error", "unpack", "and", "or", "not", "if", "elseif", "while", "until", "return", "in", "for"}
	for _, m := range regexp.MustCompile(`(?:local|function)\s+([\w, ]+)`).FindAllStringSubmatch(code, -1) {
		names = append(names, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, m := range regexp.MustCompile(`([\w.:]+)\s*\(`).FindAllStringSubmatch(code, -1) {
		if !strings.Contains(m[1], ".") {
			require.Contains(t, names, m[1])
		}
	}
	require.NotRegexp(t, `//|<<|>>|\bgoto\b|[^~]~[^=]|[^'<&]&|\|`, code, "operators of Lua 5.3")
}
