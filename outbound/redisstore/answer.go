package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// The errors of a step that was not carried out, or of which it is not known.
var (
	errReply = errors.New("redisstore: not a reply of this package's script")
	errRace  = errors.New("redisstore: other processes write the key again and again")
	errLate  = errors.New("redisstore: the step came too late, or the server's clock was set")
	errBusy  = errors.New("redisstore: another process has reserved the key")
	errOld   = errors.New("redisstore: a later step of this process is on record")
)

// errDiffers is the cause of the event of a key of which the server has booked other calls than
// package store would have.
var errDiffers = errors.New("redisstore: the server has booked another number of calls than the arithmetic of package store allows;" +
	" for a minute the key goes by swap")

// answer is what an attempt has found.
type answer struct {
	now      time.Duration // the server's time
	last     int64         // this process's last step on record before; 0: none
	word     string
	row      *row          // as it is now; nil: not known
	wrote    bool          // the step has written the key
	repeated bool          // from the record: the step had been carried out before
	differs  bool          // the server has booked another number of calls than Go would
	left     time.Duration // how long another process still has the key for itself
	reply    store.Reply
	err      error // nil: reply is the answer. Else nothing was done
}

// read makes an answer of what the script has returned.
func (q *request) read(value any, into []store.Charge) (a answer, err error) {
	if text, ok := value.(string); ok {
		return q.readHot(text, into)
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
	case "look", "cold", "late":
		a.row = readRow(text(3), text(4), text(5), text(6))
		if a.err = errRace; a.word == "late" {
			a.err = errLate
		}
		q.lookAt(&a, into)
	case "missing":
		a.row, a.err = &row{}, errRace
	case "busy":
		left, _ := v[len(v)-1].(int64)
		a.left, a.err = time.Duration(max(0, left))*time.Microsecond, errBusy
	case "old":
		a.err = errOld
	case "same":
		if ok = q.mode == swap && q.made == nil; ok {
			a.row = q.row
			a.answer(q.reply, into)
		}
	case "done":
		if ok = q.made != nil; ok {
			a.row, a.wrote = q.made, true
			a.answer(q.reply, into)
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

// answer gives an answer the reply that Go has made before.
func (r *answer) answer(reply store.Reply, into []store.Charge) {
	r.reply = reply
	r.reply.Charges = append(into, reply.Charges...)
}

// lookAt answers a step that changes nothing of the key that was read.
func (q *request) lookAt(a *answer, into []store.Charge) {
	if q.fence {
		return
	}
	op, s := *q.op, a.row.stored.Clone()
	op.Into = into
	if r := op.ApplyAt(&s, a.now, a.now); !r.Changed {
		a.reply, a.err = r, nil
	}
}

// readHot reads the answer to a hot step: the key from before, from which Go computes the reply.
func (q *request) readHot(text string, into []store.Charge) (a answer, err error) {
	if len(text) < 48 || q.mode != hot {
		return a, fmt.Errorf("%w: %.80q", errReply, text)
	}
	a.last = int64(number(text))
	return a, q.replay(&a, text[16:], number(text[8:]) != 0, into)
}

// readRecord reads the record of a step that had been carried out before.
func (q *request) readRecord(a *answer, text string, into []store.Charge) error {
	a.repeated = true
	if len(text) < 24 {
		return errReply
	}
	if m := number(text[16:]); m >= 0 && q.mode == hot && len(text) >= 40 {
		now := a.now
		err := q.replay(a, text[8:], true, into)
		a.now, a.row = now, nil // others may have written it since
		return err
	} else if m != -1 || q.made == nil {
		return errReply
	}
	a.answer(q.reply, into)
	return nil
}

// replay carries the step out once more, as the server has: text is its time, how many calls it has
// booked, the lengths of s and x, and s, x and g.
func (q *request) replay(a *answer, text string, wrote bool, into []store.Charge) error {
	r := reader{text: text}
	at, booked, ofS, ofX := r.micros(), r.int(), r.int(), r.int()
	if r.bad || booked < 0 || booked > int64(len(q.op.Costs)) || ofS < 0 || ofX < 0 || ofS+ofX > int64(len(r.text)) {
		return errReply
	}
	before, op := store.Stored{}, *q.op
	if s := r.text[:ofS]; s != "" {
		before = q.row.stored.Clone()
		before.State.Row, before.State.Leaked = store.Row{}, store.Units{}
		for i := range before.State.Parts {
			p := &before.State.Parts[i]
			*p = store.Part{Since: p.Since, End: p.End}
		}
		if !overlay(&before, s, r.text[ofS:ofS+ofX], r.text[ofS+ofX:]) { // nor can the script go on with it
			a.err = errRace
			return nil
		}
		a.row = &row{token: s[:8], print: q.row.print, fixed: q.row.fixed, stored: before}
	} else {
		a.row = &row{}
	}
	after := before.Clone()
	op.Into = into
	a.now, a.wrote = at, wrote
	if a.reply = op.ApplyAt(&after, at, at); a.reply.Corrupt {
		a.err, a.row = errRace, nil
		return nil
	}
	if int64(len(a.reply.Charges)) != booked {
		a.differs = true
		after = before.Clone()
		a.reply = exactly(&op, &after, at, int(booked), &a.reply)
	}
	if wrote {
		a.row = newRow(after, q.token, q.row)
	}
	return nil
}

// exactly carries op out as a server that has booked m calls, whatever the limits allow.
func exactly(op *store.Op, s *store.Stored, now time.Duration, m int, other *store.Reply) store.Reply {
	o := *op
	o.Costs, o.Wait, o.Horizon = op.Costs[:m], farthest, farthest
	r := o.ApplyAt(s, now, now)
	if m < len(op.Costs) {
		if r.Refused, r.Limit, r.Wait = true, other.Limit, other.Wait; r.Wait <= 0 {
			w, which, _ := s.State.Wait(s.Limits, &op.Costs[m])
			r.Limit, r.Wait = which, max(1, s.State.Real(w))
		}
	}
	return r
}
