package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// The errors of a step that was not carried out, or may not have been.
var (
	errReply = errors.New("redisstore: not a reply of this package's script")
	errRace  = errors.New("redisstore: other processes write the key again and again")
	errLate  = errors.New("redisstore: the step came too late, or the server's clock was set")
	errBusy  = errors.New("redisstore: another process has reserved the key")
	errLost  = errors.New("redisstore: later steps of this process are missing: the server lost data")
	errOld   = errors.New("redisstore: a later step of this process is on record")
)

// errDiffers is the cause of the event of a key of which the server has booked other calls than
// package store would have.
var errDiffers = errors.New("redisstore: the server has booked another number of calls than the arithmetic of package store allows;" +
	" for a minute the key goes by swap")

// answer is what an attempt has found.
type answer struct {
	now      time.Duration // the server's time
	last     int64         // this process's last step on record before, or 0
	word     string
	row      *row          // as it is now, or nil
	wrote    bool          // the step has written the key
	repeated bool          // from the record: the step had been carried out before
	differs  bool          // the server has booked another number of calls than Go would
	left     time.Duration // how long another process still has the key for itself
	reply    *store.Reply
	err      error // nil if reply is the answer. Else nothing was done
}

// read makes an answer of what the script has returned. It writes the reply and its charges there.
func (q *request) read(value any, into []store.Charge, reply *store.Reply) (a answer, err error) {
	a.reply = reply
	if text, ok := value.(string); ok {
		err = q.readHot(&a, text, into)
		return a, err
	}
	v, ok := value.([]any)
	if !ok || len(v) < 3 {
		return a, errReply
	}
	a.word, _ = v[0].(string)
	us, ok := v[1].(int64)
	if !ok || us < 0 || us > 1<<53 {
		return a, errReply
	}
	a.now = time.Duration(us) * time.Microsecond
	a.last, _ = v[2].(int64)
	text := func(i int) string {
		s, is := "", i < len(v)
		if is {
			s, is = v[i].(string)
		}
		ok = ok && is
		return s
	}
	switch a.word {
	case "look", "cold", "late", "bare":
		a.row = readRow(text(3), text(4), text(5))
		if a.err = errRace; a.word == "late" {
			a.err = errLate
		}
		q.lookAt(&a, into)
	case "missing":
		a.row, a.err = &row{}, errRace
	case "busy":
		left, _ := v[len(v)-1].(int64)
		a.left, a.err = time.Duration(max(0, left))*time.Microsecond, errBusy
	case "lost":
		a.err = errLost
	case "old":
		a.err = errOld
	case "same":
		if ok = q.mode == swap && q.made == nil; ok {
			a.row = q.row
			q.answer(&a, into)
		}
	case "done":
		if ok = q.made != nil; ok {
			a.row, a.wrote = q.made, true
			q.answer(&a, into)
		}
	case "again":
		if r := text(3); ok {
			err = q.readRecord(&a, r, into)
		}
	default:
		ok = false
	}
	if !ok {
		err = errReply
	}
	return a, err
}

// answer writes the reply that the swap counts on.
func (q *request) answer(a *answer, into []store.Charge) {
	*a.reply = *q.reply
	a.reply.Charges = append(into, q.reply.Charges...)
}

// lookAt answers a step that changes nothing of the key that was read.
func (q *request) lookAt(a *answer, into []store.Charge) {
	if q.fence {
		return
	}
	op, s := *q.op, a.row.stored.Clone()
	op.Into = into
	if r := op.ApplyAt(&s, a.now, a.now); !r.Changed {
		*a.reply, a.err = r, nil
	}
}

// readHot reads the answer to a hot step: the key from before, from which Go computes the reply.
func (q *request) readHot(a *answer, text string, into []store.Charge) error {
	f := reader{text: text}
	if a.last, a.wrote = f.int(), f.int() != 0; f.bad || q.mode != hot {
		return fmt.Errorf("%w: %.80q", errReply, text)
	}
	return q.replay(a, f.text, into)
}

// readRecord reads the record of a step that had been carried out before.
func (q *request) readRecord(a *answer, text string, into []store.Charge) error {
	a.repeated = true
	_, text, _ = strings.Cut(text, " ")
	f := reader{text: text}
	if f.int(); q.mode == hot && f.int() >= 0 {
		now := a.now
		err := q.replay(a, text, into)
		a.now, a.row = now, nil // another process may have written it since
		return err
	} else if q.made == nil || q.mode == hot {
		return errReply
	}
	q.answer(a, into)
	return nil
}

// before reads the key as it was before a hot step, the step's time, and how many calls it has
// booked. The error is errRace if the script cannot go on with the key.
func (q *request) before(text string) (r *row, at time.Duration, booked int64, err error) {
	f := reader{text: text}
	at, booked, has := f.micros(), f.int(), f.int()
	if r = new(row); has == whole && len(f.text) >= headSize {
		r.seen, f.text = f.text[:tokenSize], f.text[headSize:]
	}
	if f.bad || booked < 0 || booked > int64(len(q.op.Costs)) || has < 0 || has > whole || has == whole && r.seen == "" || has == 0 && f.text != "" {
		return r, 0, 0, errReply
	}
	if has != 0 {
		r.edition, r.fixed, r.epoch, r.stored = q.row.edition, q.row.fixed, q.row.epoch, q.row.stored
		st := &r.stored.State
		st.Row, st.Leaked, st.Parts = store.Row{}, store.Units{}, append(r.one[:0], make([]store.Part, len(r.stored.Limits))...)
		for i := range st.Parts {
			st.Parts[i].Since = q.row.stored.State.Parts[i].Since
		}
		if !r.overlay(&f, q.row) {
			err = errRace
		}
		at += st.At
	}
	return r, at, booked, err
}

// replay carries the step out once more, as the server has: text is its time, how many calls it has
// booked, and the key as it was.
func (q *request) replay(a *answer, text string, into []store.Charge) error {
	r, now, booked, err := q.before(text)
	if err == errRace {
		a.err = err
		return nil
	} else if err != nil {
		return err
	}
	op := *q.op
	op.Into = into
	a.now = now
	reply := op.ApplyAt(&r.stored, now, now)
	if reply.Corrupt {
		a.err = errRace
		return nil
	}
	if int64(len(reply.Charges)) != booked {
		a.differs = true
		r, _, _, _ = q.before(text)
		reply = exactly(&op, &r.stored, now, int(booked), &reply)
	}
	*a.reply = reply
	if a.row = r; !a.wrote {
		return nil
	}
	if r.seen = q.token; r.fixed == "" {
		r.edition, r.fixed, r.epoch = q.token[:4], madeAt(now, r.stored.Made, q.row.fixed), int64(now)
	}
	return nil
}

// whole says that a reply has the key with its token.
const whole = 2

// exactly carries op out as a server that has booked m calls, whatever the limits allow.
func exactly(op *store.Op, s *store.Stored, now time.Duration, m int, other *store.Reply) store.Reply {
	o := *op
	o.Costs, o.Wait, o.Horizon, o.Headroom = op.Costs[:m], farthest, farthest, 0
	r := o.ApplyAt(s, now, now)
	if m < len(op.Costs) {
		if r.Refused, r.Limit, r.Wait = true, other.Limit, other.Wait; r.Wait <= 0 {
			needs := store.Needs(s.Limits, &op.Costs[m], op.Headroom)
			w, which, _ := s.State.Wait(s.Limits, &needs)
			r.Limit, r.Wait = which, max(1, s.State.Real(w))
		}
	}
	return r
}
