// Package xrate lets a [rate.Limiter] of golang.org/x/time pace calls, for
// programs that have one already:
//
//	limiter := &xrate.Limiter{Rate: rate.NewLimiter(10, 20), Key: "weather"}
//
// is an [outbound.Limiter] for jobs and transports. It refuses immediately instead of waiting.
// Other code may use the same rate.Limiter directly, with Wait, Reserve or SetLimit: both take from
// one set of tokens.
//
// An [outbound.Bucket] can do more than x/time. Here these features are missing:
//
//   - Returned costs. A permit's Settle has no effect, so acquire the most that a call may cost.
//   - Holds and slowing down. A permit's Refused and Hold have no effect: the limiter keeps its
//     rate however often the API refuses.
//   - Several limits, units and processes.
//   - Fractions: a cost of 1.5 takes 2 tokens.
//   - An exact bound under contention. x/time counts some time twice if it gets an earlier time
//     than before, and racing callers do that. More than burst + rate*W may then leave in an
//     interval of length W.
//   - Windows. A limiter for n per window with a burst of n admits almost 2n in one window. See
//     [outbound.Per].
package xrate
