// Package watch shows limiters while they work: a page for people, metrics for Prometheus, lines for a log.
//
//	var board watch.Board
//	limiter := board.Add("github", queue.New(bucket, queue.Config{})) // use the result
//	http.Handle("/debug/dripfeed", &board)
//	http.Handle("/metrics", board.Metrics())
//	defer bucket.Observe(watch.Log(slog.With("limiter", "github")))()
//
// A [Board] answers what an operator asks: how full the limits are, which calls wait and for how long,
// what was refused and why, why no call leaves and until when, how fast calls leave, which limit binds,
// what the API reports is left of its quota and how much of that others use, which of many keys are in
// trouble, and whether a store is unavailable.
//
// # Whose numbers
//
// What is counted (calls, waits, units, refusals) is this process's. Prometheus adds the processes up.
// Levels, holds and speeds of a shared bucket are those of all processes, and as old as AsOf of the
// Explanation says. The counts begin when a limiter is added. A queue or a store that is added again
// under its name counts from 0; all other counts go on.
//
// # Metrics
//
//	dripfeed_calls_total{limiter, result, error_type}    calls: admitted, refused, failed, cancelled
//	dripfeed_calls_without_room_total{limiter, limit}    the refused, by the limit that had no capacity
//	dripfeed_call_wait_time_seconds{limiter}             histogram of the waits of admitted calls, 1 ms to 1 h
//	dripfeed_calls_waiting, _oldest_wait_seconds         {limiter}: of a queue, now
//	dripfeed_units_total{limiter, unit}                  units that admitted calls took, before they were settled
//	dripfeed_limit_level, _capacity, _leak_rate          {limiter, limit}; a limit made by outbound.Per has capacity 1
//	dripfeed_refusals_total{limiter, reason}             calls that the API has refused
//	dripfeed_hold_remaining_seconds{limiter, reason}     for how long no call leaves
//	dripfeed_hold_time_seconds_total, dripfeed_speed     {limiter}
//	dripfeed_keys{limiter}                               limiters of an outbound.Keyed
//	dripfeed_api_limit, _remaining, _reset_seconds       {limiter, policy, unit}: what the API reports, until its reset
//	dripfeed_api_others_ratio                            the part that others have used, about
//	dripfeed_queue_late_total{limiter}                   reservations that passed unused, because the process was late
//	dripfeed_store_away, _trips_total, _operations_total {store}: requests, and the operations that shared them
//	dripfeed_store_trip_time_seconds{store}              histogram
//	dripfeed_store_repeats_total, _failures_total        {store}
//
// A label is a name from the program, a limit's or a policy's, and never a key, a URL or a host.
// However many keys there are, they are one series, which has no level, queue, hold or speed. While a
// store does not answer, there is no level, hold and speed of what it keeps. [Board.Collect] collects
// the same numbers: package prom brings them into a registry of Prometheus's client, and package otel
// to OpenTelemetry. For package expvar there is Snapshot, as JSON:
//
//	expvar.Publish("dripfeed", expvar.Func(func() any {
//		return board.Snapshot(context.Background(), watch.Query{})
//	}))
//
// Package transport reads what the API reports from its responses. How much of a quota others use is
// its limit, less what the API says remains, less what this process has sent since the quota's window
// began. It can be wrong by as many calls as are in progress, and it counts other processes of this
// program as others. It is unknown for a quota that counts no requests, for one whose windows are
// shorter than ten seconds, for one whose reset moves with each call, as that of a leaky bucket does,
// and for a Keyed, whose keys may have a quota each. To find what none of n processes has sent, add up
// dripfeed_api_others_ratio of all of them, and subtract n-1 times the part of the quota that is used:
// the alerts of examples/watch do so in PromQL.
//
// # What it costs
//
// An admitted call costs two readings of the clock, a mutex and some counters, and no allocation. A look
// at the page makes one trip for each shared limiter that it shows, once a second however many people
// look, and none while the page is closed. It leaves the buckets as they are. It looks at each key of a
// Keyed, and asks those that it shows. To look at 100,000 keys takes tens of milliseconds. The next such
// look begins a hundred times that long after it; until then a look asks only the keys that the last
// one has found. A search is such a look, and makes the label of each key; only the last search is
// remembered. A scrape of 100 limiters takes half a millisecond of a processor.
package watch
