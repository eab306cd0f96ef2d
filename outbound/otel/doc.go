// Package otel reports to OpenTelemetry what a [watch.Board] counts, and traces the waits.
//
//	var board watch.Board
//	limiter := board.Add("github", queue.New(bucket, queue.Config{})) // use the result
//	stop, err := otel.Instrument(&board, otel.Config{})
//
// The package needs the API of OpenTelemetry only. The program brings the SDK and its exporters.
//
// # Metrics
//
// The attribute limiter is a name given to Add, and store one given to AddStore. No attribute has a
// key, a URL or a host in it, and all keys of a Keyed share the series of their name. An attribute
// that would be empty is left out. An instrument without a unit has "-". Package watch says what
// each one means: dripfeed.calls is dripfeed_calls_total there, and so on.
//
//	name                             kind       unit           attributes
//	dripfeed.calls                   counter    {call}         limiter, result, error.type
//	dripfeed.calls.over_limit        counter    {call}         limiter, limit
//	dripfeed.call.wait_time          histogram  s              limiter
//	dripfeed.calls.waiting           gauge      {call}         limiter
//	dripfeed.calls.oldest_wait       gauge      s              limiter
//	dripfeed.units                   counter    {unit}         limiter, unit
//	dripfeed.limit.level             gauge      {unit}         limiter, limit *
//	dripfeed.limit.capacity          gauge      {unit}         limiter, limit *
//	dripfeed.limit.leak_rate         gauge      -              limiter, limit *
//	dripfeed.limit.used_up_in        gauge      s              limiter, limit *
//	dripfeed.refusals                counter    {call}         limiter, reason
//	dripfeed.hold.remaining          gauge      s              limiter, reason *
//	dripfeed.hold.time               counter    s              limiter *
//	dripfeed.speed                   gauge      -              limiter *
//	dripfeed.keys                    gauge      {key}          limiter
//	dripfeed.api.limit               gauge      {unit}         limiter, policy, unit *
//	dripfeed.api.remaining           gauge      {unit}         limiter, policy, unit *
//	dripfeed.api.reset               gauge      s              limiter, policy, unit *
//	dripfeed.api.others              gauge      1              limiter, policy, unit *
//	dripfeed.calls.unanswered        counter    {call}         limiter
//	dripfeed.queue.late              counter    {reservation}  limiter
//	dripfeed.ledger.charged          counter    {unit}         limiter, label, unit
//	dripfeed.ledger.returned         counter    {unit}         limiter, label, unit
//	dripfeed.ledger.added            counter    {unit}         limiter, label, unit
//	dripfeed.ledger.refused          counter    {unit}         limiter, label, unit
//	dripfeed.ledger.waited           counter    {unit}         limiter, label, unit
//	dripfeed.ledger.money            gauge      -              limiter, label, unit
//	dripfeed.store.unavailable       gauge      -              store
//	dripfeed.store.requests          counter    {request}      store
//	dripfeed.store.request_time.sum  counter    s              store
//	dripfeed.store.operations        counter    {operation}    store
//	dripfeed.store.repeats           counter    {request}      store
//	dripfeed.store.failures          counter    {operation}    store
//
// Counts are those of one process, which the resource's service.instance.id identifies. Add them up
// to get those of all processes. Metrics with * are of a bucket or of a quota. All processes that
// share it report about the same number, so take the maximum instead of the sum. Calls in progress
// are the level of an [outbound.InFlight] limit.
//
// An exporter for Prometheus gives each metric the name that [watch.Board.Metrics] serves, so one
// alert fits both. For that, some instruments have no unit: "1" and "{unit}/s" would change their
// names. The exception is dripfeed.store.request_time.sum: the text has the histogram
// dripfeed_store_request_time_seconds. OpenTelemetry's SDK can read a histogram at collection, its
// API cannot. A program that wants the histogram gives its reader the Producer of package
// [github.com/dripfeed/dripfeed/outbound/otel/storetimes].
//
// Each collection reads everything except the waits by one [watch.Board.Collect], with a request to
// the store for each shared bucket and none for keys. While a store hangs that takes 0.8 s. An
// admitted call records its wait. A queue or a store that is added again under its name counts from
// 0.
//
// # Traces
//
// In a sampled trace, a wait of a millisecond or longer is a span "wait for github" with the
// attributes limiter and result. Its status is Error if the call has failed. A refused call is an
// event "refused by github" of the caller's span, with limiter, limit and, if known, reason and
// retry_after in seconds. The span's context is that of Acquire. It makes the exemplars of
// dripfeed.call.wait_time, too.
//
// # With otelhttp
//
// Put otelhttp.NewTransport into the transport:
//
//	&transport.Transport{Limiter: limiter, Base: otelhttp.NewTransport(http.DefaultTransport)}
//
// There the span of each request begins when its wait ends. Around the transport,
// http.client.request.duration would include the waits, as if the API were slow.
package otel
