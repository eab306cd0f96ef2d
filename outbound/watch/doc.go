// Package watch shows limiters while they work: a page, metrics for Prometheus, and log lines.
//
//	var board watch.Board
//	limiter := board.Add("github", queue.New(bucket, queue.Config{})) // use the result
//	http.Handle("/debug/dripfeed", &board)
//	http.Handle("/metrics", board.Metrics())
//	defer bucket.Observe(watch.Log(slog.With("limiter", "github")))()
//
// A [Board] answers what an operator asks. How full are the limits, and which one binds? Which
// calls wait, and for how long? What was refused, and why? Why does no call leave, and until when?
// How fast do calls leave? What remains of the API's quota, and how much do other clients use?
// Which of many keys are in trouble? Is a store unavailable? Which label of a ledger has used most?
//
// # What to do
//
//   - No call leaves for a while, or a limiter is held: wait. Resume only if the pause is known to
//     be wrong: the API refuses calls again, and each refusal in a row doubles the hold.
//   - Slowed: the API has refused calls. If that happens again, the configured limits are too high.
//   - A quota is used up: wait for its next period, or raise it. A quota that will be used up has a
//     metric once its pace is known, and an event and a line on the page from 80 % on: send less.
//   - As many calls are in flight as may be, the oldest for long: look for calls that hang.
//   - Calls got no answer: their deadlines are too short, or the API has become slow.
//   - The store does not answer: repair it. Calls fail, or continue on a share by package fallback,
//     which is Slowed.
//   - The stored data was corrupt: Resume opens the limits, except for what calls have taken since.
//   - Calls wait: the Explanation has the limit, the time, and the calls ahead.
//
// # Whose numbers
//
// The counts (calls, waits, units, refusals) are those of this process. Prometheus adds the
// processes up. Levels, holds and speeds of a shared bucket are those of all processes, at AsOf of
// the Explanation. While package fallback decides by a part of each limit, the levels count the
// rest as used. The counts begin when a limiter is added. A queue or a store that is added again
// under its name counts from 0; all other counts go on.
//
// # Metrics
//
//	dripfeed_calls_total{limiter, result, error_type}  calls: admitted, refused, failed, cancelled
//	dripfeed_calls_over_limit_total{limiter, limit}    refused calls, by limit
//	dripfeed_call_wait_time_seconds{limiter}           histogram of the waits of admitted calls
//	dripfeed_calls_waiting{limiter}                    in a queue, now
//	dripfeed_calls_oldest_wait_seconds{limiter}        of the first call in a queue
//	dripfeed_units_total{limiter, unit}                units of admitted calls, before they settle
//	dripfeed_limit_level{limiter, limit}               units that count, those of booked calls too
//	dripfeed_limit_capacity{limiter, limit}            1 for Per
//	dripfeed_limit_leak_rate{limiter, limit}           units per second
//	dripfeed_limit_used_up_in_seconds{limiter, limit}  of a quota, if it will be used up
//	dripfeed_refusals_total{limiter, reason}           calls that the API has refused
//	dripfeed_hold_remaining_seconds{limiter, reason}   for how long no call leaves
//	dripfeed_hold_time_seconds_total{limiter}          of all holds
//	dripfeed_speed{limiter}                            1, or less after refusals
//	dripfeed_keys{limiter}                             limiters of an outbound.Keyed
//	dripfeed_api_limit{limiter, policy, unit}          the API's report
//	dripfeed_api_remaining{limiter, policy, unit}      likewise
//	dripfeed_api_reset_seconds{limiter, policy, unit}  likewise
//	dripfeed_api_others_ratio{limiter, policy, unit}   the part that other clients use, about
//	dripfeed_calls_unanswered_total{limiter}           calls that had no answer in time
//	dripfeed_queue_late_total{limiter}                 reservations that were used too late
//	dripfeed_ledger_charged_total{limiter, label, unit}   units of admitted calls
//	dripfeed_ledger_returned_total{limiter, label, unit}  by a Settle to less
//	dripfeed_ledger_added_total{limiter, label, unit}     by a Settle to more
//	dripfeed_ledger_refused_total{limiter, label, unit}   of calls over the limit
//	dripfeed_ledger_waited_total{limiter, label, unit}    of calls that had to wait
//	dripfeed_ledger_money{limiter, label, unit}           the price of what was used
//	dripfeed_store_unavailable{store}                  1, or 0
//	dripfeed_store_requests_total{store}
//	dripfeed_store_request_time_seconds{store}         histogram
//	dripfeed_store_operations_total{store}             several share a request
//	dripfeed_store_repeats_total{store}                requests that were sent once more
//	dripfeed_store_failures_total{store}               operations that ended with an error
//
// A label is a name from the program, a limit's or a policy's, and never a key, a URL or a host.
// The label of a ledger is what the program returns for a call.
// All keys of a Keyed are one series, without level, queue, hold and speed. While a store is
// unavailable, its buckets have no level, hold and speed. Those on a share have them.
// [Board.Collect] collects the same numbers: package prom brings them into a registry of
// Prometheus's client, and package otel to OpenTelemetry. For package expvar there is Snapshot, as
// JSON:
//
//	expvar.Publish("dripfeed", expvar.Func(func() any {
//		return board.Snapshot(context.Background(), watch.Query{})
//	}))
//
// Package transport reads what the API reports from its responses. The part of other clients is the
// quota's limit, less what remains, less what this process has sent since the quota's window began.
// It can be wrong by the calls in progress, and it includes other processes of this program. It is
// unknown for quotas of other units than requests, windows below ten seconds, resets that move with
// each call (a leaky bucket), and a Keyed. With n processes, add up dripfeed_api_others_ratio of
// all, and subtract n-1 times the used part of the quota. The rest was sent by other programs: the
// alerts of examples/watch compute it in PromQL.
//
// # What it costs
//
// An admitted call costs two readings of the clock, a mutex and some counters, and no allocation.
// An open page makes one request to the store a second for each shared limiter that it shows,
// however many people look. A closed page makes none. Looking changes no bucket. A look visits each
// key of a Keyed, and asks the store for those that it shows. A look at 100,000 keys takes tens of
// milliseconds, and the next one begins a hundred times that long after it. Until then a look asks
// only for the keys that the last one has found. A search is such a look, and makes the label of
// each key; only the last search is remembered. A scrape of 100 limiters takes about a millisecond
// of a processor.
package watch
