// Package fallback says what calls do while the store of their limits is away.
//
//	store := &fallback.Store{Store: redis, Share: 0.25} // this is one of four workers
//	bucket, err := outbound.NewSharedBucket(store, "weather", outbound.PerSecond(50))
//
// A [Store] passes every operation to the store that it is around. If that fails with an
// error that is [outbound.ErrAway], the Store marks it away, for every key. Any other error
// goes to the caller and changes nothing: that of the caller's ctx, of one key, or one that
// no wait cures, such as a wrong password.
//
// # While the store is away
//
// Calls get what the fields of the Store choose: the store's error, which is the zero value,
// a share of every limit ([Store.Share]), or anything at all ([Store.Unlimited]).
// [outbound.Bucket.SetLimits] and [outbound.Bucket.Resume] fail with the store's error.
//
// The Store tries the store again after 100 ms, and after twice as long each time up to
// 1 s, less a random part of at most half. With a Share or Unlimited it tries in the
// background, and no call waits. Without them one call makes the try, and the others fail
// at once.
//
// With a Share each key has a bucket in this process. It begins full, so that the switch
// causes no burst. Of a limit with a capacity of 40 and 20 units per second, each of four
// workers with a Share of 0.25 has 10 and 5, and a call of 11 units fails with the store's
// error. Tickets that were booked in the store are void. A hold or a slow-down that was in
// force goes on. A refusal or a hold that a call reports counts here, also if the store
// had admitted the call. Units that such a call did not need are lost, which costs room;
// units that it needed beyond its cost are charged here.
//
// A share of a window is a window of the same length. It begins full as if its units had gone
// at the switch, because other workers may have used all of the window just before. So no call
// goes until a window after the switch; then the whole share is there at once. In shorter outages
// calls get an [*outbound.ThrottledError] with the time until then. Where calls are to go on
// meanwhile, use [outbound.PerHour] and its kin, whose shares drain from the switch on.
//
// A share of an hour, a day or a month is that of what was left of it when the store last told
// this worker; if it never has, there is none until the next one. It counts by this machine's
// time of day. A worker remembers what the store has told of 10 000 keys.
//
// A share that is less than a unit is a whole unit, which comes back as seldom as the Share
// says: of [outbound.Window] with 5 calls an hour, each of ten workers has a call in two
// hours. A share of an hour, a day or a month stays less, because a unit of each would be more
// than the Share says: of 5 calls a day, each of ten workers has half a call, and calls fail
// with the store's error until the store is back.
//
// # When the store is back
//
// A worker with a Share stays on it until 3 s after the first worker has reached the store:
// the last one may notice as late, if its store takes up to 2 s to fail. The workers agree on
// that time in the store, under the key "\x00fallback". The Store adds a zero byte there to
// a bucket's key that begins so.
//
// Then each worker charges the store with what it has spent of each key, under the limits by
// which the calls counted, or those that were set for all meanwhile. As with
// [outbound.Bucket.Fillup] no level rises above its brim: a worker that has spent more than
// a capacity leaves a full bucket and no debt. A limit that has had the time to drain since
// is not charged, nor is what has come back to its window or its day meanwhile. The worker
// reports holds that are still in force. Permits of calls that went meanwhile give nothing
// back to the store. Where the store does not take a charge, as with an error of this key, the
// key's next call tries again, and the Store does so each minute.
//
// For 100 ms no call goes, and calls that come wait, so that every worker has charged what
// it has spent before the first call goes. A worker charges its keys one after the other:
// with very many, it charges some of them later than that.
//
// # What is guaranteed
//
// Workers whose Shares add up to at most 1 stay within the limit together, but for
//
//   - tickets that a queue may still use for 25 ms after the switch: LeakRate*25 ms;
//   - limits of which a Share is less than a unit: each worker has a whole unit, so ten
//     workers with [outbound.PerSecond] may go all at once, each as seldom as its Share says;
//   - hours, days and months: of what others have used of one since this worker last heard
//     from the store it knows nothing, and takes its share of that as well;
//   - workers that lose the store while others reach it: their Shares come on top of the
//     others' use until they have charged them. While two of five workers with a Share of
//     0.2 are cut off, or have no connection left, all together use 140 % of the limit.
package fallback
