package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Place is where a job stands in a line: enqueue it to run at At, with its Ticket.
type Place struct {
	// At is when the job is to run, which is a lead before its turn.
	At time.Time
	// Ticket names the place: see [WithTicket]. It is empty if the place would be further away
	// than Config.Ahead. Then the job books one when it runs.
	Ticket string
}

// mostBooked is how many places one trip books.
const mostBooked = 4096

// Book books a place for each of costs, in this order, for jobs that are about to be enqueued. It
// makes one trip for 4 096 of them. After an error all places go back, or pass unused if the store does
// not take them within a second. It is the error of a cost that can never go, [*outbound.CostError], or
// that of the store or of ctx; then jobs can be enqueued without a place.
func (l *Scheduler) Book(ctx context.Context, costs ...outbound.Cost) ([]Place, error) {
	if err := l.wrong(); err != nil {
		return nil, err
	}
	all := make([]Place, 0, len(costs))
	var booked []outbound.Ticket // to give back
	k := outbound.Booking{Wait: l.config.Ahead, Horizon: l.config.Ahead}
	for len(all) < len(costs) {
		left := costs[len(all):]
		k.Costs = left[:min(len(left), mostBooked)]
		err := l.books(ctx, &k)
		var full *outbound.ThrottledError
		if errors.As(err, &full) {
			at := time.Now().Add(l.again(full.RetryAfter))
			for range left {
				all = append(all, Place{At: at})
			}
			break
		}
		if err != nil {
			l.giveBack(ctx, booked)
			return nil, err
		}
		for _, t := range k.Tickets {
			all = append(all, Place{At: k.Clock.Due(t).Add(-l.config.Lead), Ticket: t.Mark()})
		}
		booked = append(booked, k.Tickets...)
	}
	return all, nil
}

// giveBack gives places back, the latest first, because a place can only be undone when those booked
// after it have been. It goes on after the end of ctx, but not for long.
func (l *Scheduler) giveBack(ctx context.Context, booked []outbound.Ticket) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for len(booked) > 0 {
		rest := max(0, len(booked)-mostBooked)
		k := outbound.Booking{Back: booked[rest:]}
		if l.desk.Book(ctx, &k) != nil {
			return
		}
		booked = booked[:rest]
	}
}
