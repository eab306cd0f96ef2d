// Package otel reports to OpenTelemetry what a [watch.Board] counts, and traces the waits.
//
//	var board watch.Board
//	limiter := board.Add("github", queue.New(bucket, queue.Config{})) // use the result
//	stop, err := otel.Instrument(&board, otel.Config{})
//
// It needs the API of OpenTelemetry only. The program brings the SDK and its exporters.
//
// # Metrics
//
// The attribute limiter is a name given to Add, and store one given to AddStore. No attribute has a
// key, a URL or a host in it, and all keys of a Keyed share the series of their name. An attribute that
// would be empty is left out. An instrument without a unit has "-".
//
//	name                         kind       unit           attributes                    what it means
//	dripfeed.calls               counter    {call}         limiter, result, error.type   calls: admitted, refused, failed, cancelled
//	dripfeed.calls.without_room  counter    {call}         limiter, limit                the refused, by the limit that had no capacity
//	dripfeed.call.wait_time      histogram  s              limiter                       how long the admitted waited, from 1 ms to 1 h
//	dripfeed.calls.waiting       gauge      {call}         limiter                       calls in the queue
//	dripfeed.calls.oldest_wait   gauge      s              limiter                       how long the first of them has waited
//	dripfeed.units               counter    {unit}         limiter, unit                 units that the admitted took; unit is their number in a Cost
//	dripfeed.limit.level         gauge      {unit}         limiter, limit                units in the bucket, with those that are booked *
//	dripfeed.limit.capacity      gauge      {unit}         limiter, limit                units that the bucket holds *
//	dripfeed.limit.leak_rate     gauge      -              limiter, limit                units a second in the long run *
//	dripfeed.refusals            counter    {call}         limiter, reason               calls that the API has refused
//	dripfeed.hold.remaining      gauge      s              limiter, reason               for how long no call leaves; 0: calls leave *
//	dripfeed.hold.time           counter    s              limiter                       for how long none left, in all, as far as this process learned *
//	dripfeed.speed               gauge      -              limiter                       1, or less after refusals *
//	dripfeed.keys                gauge      {key}          limiter                       limiters of a Keyed
//	dripfeed.api.limit           gauge      {unit}         limiter, policy, unit         the API's quota, as it reports, until its reset *
//	dripfeed.api.remaining       gauge      {unit}         limiter, policy, unit         what is left of it *
//	dripfeed.api.reset           gauge      s              limiter, policy, unit         how long until it is whole again *
//	dripfeed.api.others          gauge      1              limiter, policy, unit         the part that others have used, about; other processes are others *
//	dripfeed.queue.late          counter    {reservation}  limiter                       reservations lost because the process was late
//	dripfeed.store.away          gauge      -              store                         whether the store is unavailable: 1, or 0
//	dripfeed.store.trips         counter    {trip}         store                         requests to the store
//	dripfeed.store.trip_time.sum counter    s              store                         how long they took, in all
//	dripfeed.store.operations    counter    {operation}    store                         operations that requests have answered; several share one
//	dripfeed.store.repeats       counter    {trip}         store                         requests that were sent once more
//	dripfeed.store.failures      counter    {operation}    store                         operations that ended with an error of the store
//
// Counts are those of one process, which the resource's service.instance.id tells apart. Add them up
// to get those of all processes. Metrics with * are of a bucket or of a quota. If it is shared, each
// process reports the same one, about the same, so take the maximum, and never the sum. Calls in
// progress are the level of an [outbound.InFlight] limit.
//
// An exporter for Prometheus makes of each name the one that [watch.Board.Metrics] serves, so that one
// alert is for both. That is why some instruments have no unit: with "1" and "{unit}/s" they would be
// called otherwise. Only dripfeed.store.trip_time.sum is not there: the text has the histogram
// dripfeed_store_trip_time_seconds. The API has no histogram that is read at collection. The SDK has: a
// program that wants the histogram gives its reader the Producer of package
// [github.com/dripfeed/dripfeed/outbound/otel/trips].
//
// All but the waits are read at each collection, by one [watch.Board.Collect]: a trip for each shared
// bucket, and none for keys. While a store hangs that takes 0.8 s. A call records only its wait, if it
// is admitted. A queue or a store that is added again under its name counts from 0.
//
// # Traces
//
// A call that has waited for a millisecond or longer in a trace that is sampled has a span "wait for
// github", from the true beginning of its wait to the true end, with the attributes limiter and
// result. Its status is Error if the call has failed. A call that is refused is an event "refused by
// github" of the caller's span, with limiter, limit, and, as far as known, reason and retry_after in
// seconds. The span's context is that of Acquire. It makes the exemplars of dripfeed.call.wait_time,
// too.
//
// # With otelhttp
//
// otelhttp.NewTransport goes into the transport, and not around it:
//
//	&transport.Transport{Limiter: limiter, Base: otelhttp.NewTransport(http.DefaultTransport)}
//
// Around it, http.client.request.duration has the waits in it, as if the API were slow. Inside it has
// none: the span of each request begins where that of its wait ends.
package otel
