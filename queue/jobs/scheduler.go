package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Scheduler is an [outbound.Limiter] for jobs that can be put back. It is safe for concurrent use, has
// no goroutine, and needs no Close to be collected.
type Scheduler struct {
	bucket  *outbound.Bucket
	desk    *outbound.Bucket // where jobs book their places
	gate    *queue.Queue     // which alone admits
	waiting crowd
	config  Config
	err     error // what is wrong with the bucket or the Config
	made    time.Time
	looked  atomic.Int64 // how long after that the line has looked last; before the first time it is chance
}

// Config is optional: its zero value fits a job system that looks for due jobs every 5 s.
type Config struct {
	// Poll is how long the job system may take to hand out a job that is due. 0: 5 s.
	Poll time.Duration
	// Lead is how long before its place a job is to come. As many jobs wait in workers as go in
	// that time. A job's ctx has to last longer: one that ends sooner finds those that have come
	// early before it, and may come back again and again until nobody waits. 0: 1 s.
	Lead time.Duration
	// Early is how much earlier than that the line lets a job in, and does not send it back.
	// 0: 100 ms.
	Early time.Duration
	// Ahead is how far away a place may be. A job whose place would be further away gets none,
	// and comes back later to book one. 0: 24 h.
	Ahead time.Duration
	// Queue is of the queue in which jobs wait for the rest of the time. Its MaxWait is Poll and
	// two leads if it is 0: that is how long a job waits that comes a lead early to a gate which
	// is a poll and a lead behind, as when the job system was late itself. A worker is not meant to
	// wait longer. A Lead that is longer than the MaxWait is as long as that.
	Queue queue.Config
}

// withDefaults returns the Config with what its zeros stand for.
func (c Config) withDefaults() (Config, error) {
	for _, f := range [...]struct {
		d    *time.Duration
		name string
		zero time.Duration
	}{
		{&c.Poll, "Poll", defaultPoll},
		{&c.Lead, "Lead", time.Second},
		{&c.Early, "Early", 100 * time.Millisecond},
		{&c.Ahead, "Ahead", 24 * time.Hour},
	} {
		switch {
		case *f.d < 0 || *f.d > mostConfig:
			return c, fmt.Errorf("jobs: %s %v is not between 0 and %v: %w", f.name, *f.d, mostConfig, outbound.ErrInvalidLimit)
		case *f.d == 0:
			*f.d = f.zero
		}
	}
	if c.Queue.MaxWait == 0 {
		c.Queue.MaxWait = c.Poll + 2*c.Lead
	}
	if most := c.Queue.MaxWait; most > 0 { // who came earlier would be refused, and come again and again
		c.Lead, c.Early = min(c.Lead, most), min(c.Early, most/10)
	}
	return c, nil
}

const defaultPoll = 5 * time.Second

// mostConfig bounds each time of a Config, so that no sum of them overflows.
const mostConfig = 10 * 365 * 24 * time.Hour

// New returns a line for a bucket. Several lines may share one, as those of several kinds of
// jobs: they have one desk. Give them one MaxWait: a line ends a hold of the desk that is longer than its own
// MaxWait explains, and then all tickets are void. If b or c is invalid, each Acquire returns an error that is
// [outbound.ErrNil] or [outbound.ErrInvalidLimit]; so does it where b has no limit but an
// [outbound.InFlight], which tells no times.
func New(b *outbound.Bucket, c Config) *Scheduler {
	l := &Scheduler{bucket: b, desk: b.Beside("line"), made: time.Now()}
	l.config, l.err = c.withDefaults()
	l.gate = queue.New(b, l.config.Queue)
	switch {
	case b == nil:
		l.err = fmt.Errorf("jobs: %w: Bucket", outbound.ErrNil)
	case l.err != nil:
	case l.desk == nil:
		l.err = errNoTimes
	default:
		// Lines that live shorter than a poll, as in processes that do, look now and then as well.
		l.looked.Store(-int64(rand.N(l.config.Poll)))
		// A queue tells what is wrong with its Config before it looks at the ctx.
		ended, end := context.WithCancel(context.Background())
		end()
		if _, err := l.gate.Acquire(ended, outbound.Cost{}); !errors.Is(err, context.Canceled) {
			l.err = err
		}
	}
	return l
}

// Acquire admits the job, be it after a short wait, or returns a [*Later]: the job has not
// run, and is to be put back. When it comes again, the ticket of that Later comes in ctx, by
// [WithTicket]. A job without a ticket, or with one that the desk does not know, books a place
// behind all others.
//
// An error that is no Later is permanent, such as that of a cost which can never go.
func (l *Scheduler) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	if err := l.wrong(); err != nil {
		return outbound.Permit{}, err
	}
	s := stay{ticket: ticketFrom(ctx), cost: c}
	err := l.arrive(ctx, &s)
	away := errors.Is(err, outbound.ErrThrottled) || err == nil && l.early(s) > 0
	if away && l.look(ctx) {
		err = l.arrive(ctx, &s)
	}
	if err != nil {
		return outbound.Permit{}, l.later(ctx, err, s)
	}
	if in := l.early(s); in > 0 {
		full := &outbound.ThrottledError{Key: l.bucket.Key(), RetryAfter: in + l.config.Lead}
		return outbound.Permit{}, &Later{In: in, Ticket: s.ticket, full: full}
	}
	s.came = time.Now()
	l.waiting.add(&s)
	p, err := l.gate.Acquire(ctx, c)
	l.waiting.remove(&s)
	if err != nil {
		s.refused = true
		return outbound.Permit{}, l.later(ctx, err, s)
	}
	return p, nil
}

// stay is what is known of a job while it is here.
type stay struct {
	ticket  string
	cost    outbound.Cost
	due     time.Time
	came    time.Time // to the gate
	refused bool      // by the gate
}

// early returns for how long the job is to be sent back; 0: its place is near, or has passed.
func (l *Scheduler) early(s stay) time.Duration {
	if in := time.Until(s.due); in > l.config.Lead+l.config.Early {
		return in - l.config.Lead
	}
	return 0
}

// look asks what has become of the bucket, at most once in a poll: while all jobs are sent back, none
// hears of it at the gate. The desk then follows the limits. Where it is held for longer than the
// gate can be behind, somebody has ended the hold for which it is, and look ends that of the desk.
func (l *Scheduler) look(ctx context.Context) bool {
	now, last := int64(time.Since(l.made)), l.looked.Load()
	if now-last < int64(l.config.Poll) || !l.looked.CompareAndSwap(last, now) {
		return false
	}
	var k outbound.Booking // with no costs it only listens
	if l.bucket.Book(ctx, &k) != nil {
		return false
	}
	desk, err := l.desk.States(ctx)
	if err != nil {
		return false
	}
	at := time.Now()
	// No job is refused before it would wait for a MaxWait: by so much a hold may be longer.
	explained := func() bool {
		return desk[0].HeldFor-time.Since(at)-k.Clock.Clears()-l.config.Lead <= l.config.Queue.MaxWait
	}
	if explained() {
		return true
	}
	// The bucket may have been held, and the desk for that, between the two trips.
	if l.bucket.Book(ctx, &k) != nil {
		return false
	}
	return explained() || l.desk.Resume(ctx) == nil
}

// wrong returns what makes the line useless.
func (l *Scheduler) wrong() error {
	if l == nil {
		return fmt.Errorf("jobs: %w: Scheduler", outbound.ErrNil)
	}
	return l.err
}

// arrive looks the job's place up at the desk, or books one.
func (l *Scheduler) arrive(ctx context.Context, s *stay) error {
	if s.ticket != "" {
		var k outbound.Booking
		if err := l.desk.Book(ctx, &k); err != nil { // with no costs it only listens
			return err
		}
		var ok bool
		if s.due, ok = k.Clock.Place(s.ticket); ok {
			return nil
		}
		s.ticket = ""
	}
	k := outbound.Booking{Costs: []outbound.Cost{s.cost}, Wait: l.config.Ahead}
	if err := l.books(ctx, &k); err != nil {
		return err
	}
	s.due, s.ticket = k.Clock.Due(k.Tickets[0]), k.Tickets[0].Mark()
	return nil
}

// books has the desk book at least the first of the costs.
func (l *Scheduler) books(ctx context.Context, k *outbound.Booking) error {
	if err := l.desk.Book(ctx, k); err != nil {
		return err
	}
	if len(k.Tickets) == 0 {
		return &outbound.StoreError{Op: "book", Key: l.bucket.Key(), Err: errSilent}
	}
	return nil
}

var errSilent = errors.New("it has neither booked nor refused")

// SetLimits sets the limits of the bucket, as its own SetLimits does, and has the desk follow. If the
// store fails between the two, the desk follows with its next use. Where that makes places void, jobs
// that were put back book anew when they come. If the limits are higher than before, have the job
// system run those now: they come at their old times otherwise. Other limits end a hold of the desk,
// and not one of the bucket.
func (l *Scheduler) SetLimits(ctx context.Context, limits ...outbound.Limit) error {
	if err := l.wrong(); err != nil {
		return err
	}
	if len(limits) > 0 && !slices.ContainsFunc(limits, tellsTimes) {
		return errNoTimes
	}
	if err := l.bucket.SetLimits(ctx, limits...); err != nil {
		return err
	}
	return l.desk.Book(ctx, new(outbound.Booking)) // it only listens, and follows
}

// tellsTimes reports whether a limit is no InFlight.
func tellsTimes(l outbound.Limit) bool {
	like := outbound.InFlight(1)
	like.Capacity, like.LeakRate, like.Unit, like.Name = l.Capacity, l.LeakRate, l.Unit, l.Name
	return l != like
}

var errNoTimes = fmt.Errorf("jobs: a bucket that has no limit but InFlight tells no times: %w", outbound.ErrInvalidLimit)

// Resume ends a hold and a slow-down of the bucket, as its own Resume does, and the hold of the
// desk. All tickets are void then, and jobs that were put back book anew when they come.
func (l *Scheduler) Resume(ctx context.Context) error {
	if err := l.wrong(); err != nil {
		return err
	}
	if err := l.bucket.Resume(ctx); err != nil {
		return err
	}
	return l.desk.Resume(ctx)
}

// Queue returns the queue in which jobs wait for the bucket. Callers that are no jobs of the
// line may wait in it, too. Its Close has the jobs that wait come back as a [*Later].
func (l *Scheduler) Queue() *queue.Queue {
	if l == nil {
		return nil
	}
	return l.gate
}

// Idle reports whether nobody waits, the bucket is idle, and no place is booked, so that
// forgetting the line loses nothing. An [outbound.Keyed] asks this before it drops a line. The
// places of a bucket in a store are there, and outlive the line.
func (l *Scheduler) Idle() bool {
	return l == nil || l.gate.Idle() && l.desk.Idle()
}
