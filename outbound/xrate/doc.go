// Package xrate lets a [rate.Limiter] of golang.org/x/time pace calls, for
// programs that have one already:
//
//	limiter := &xrate.Limiter{Rate: rate.NewLimiter(10, 20), Key: "weather"}
//
// is an [outbound.Limiter] and goes wherever one does: around a job, or into a
// transport. It refuses at once and never waits. Other code may go on using
// the same rate.Limiter directly, with Wait, Reserve or SetLimit: both take
// from one set of tokens.
//
// What an [outbound.Bucket] has beyond that is missing here, because x/time has
// nothing like it:
//
//   - Nothing comes back. A permit's Settle has no effect, neither for calls
//     that never went out nor for calls that cost more or less than acquired:
//     acquire the most that a call may cost.
//   - Nothing holds or slows. A permit's Refused and Hold have no effect: the
//     limiter goes on at its rate however often the API refuses.
//   - One limit, one unit, one process.
//   - Tokens are whole: a cost of 1.5 takes 2.
//   - x/time counts some time twice when it is handed a time that lies before
//     one it has seen, and callers who race each other do that. Under
//     contention more may go than burst + rate*W in an interval of length W.
//   - Burst and rate are x/time's: a limiter for n per window with a burst of n
//     lets almost 2n out inside one window. See [outbound.Per].
package xrate
