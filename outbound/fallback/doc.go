// Package fallback decides what calls do while the store of their limits is unavailable.
//
//	store := &fallback.Store{Store: redis, Share: 0.25} // this is one of four processes
//	bucket, err := outbound.NewSharedBucket(store, "weather", outbound.PerSecond(50))
//
// A [Store] passes every operation to the store that it wraps. If that fails with an error that
// matches ErrUnavailable, the key of the operation is away. Any other error goes to the caller and
// changes nothing.
//
// # Guarantees
//
// Processes whose Shares add up to at most 1 stay within the limit together: in the outage, at the
// return and in every interval around both. This does not cover
//
//   - processes that lose the store while other processes reach it, or find it a second later.
//     Their Shares add to the use of the rest until they have charged it. While one of ten
//     processes with a Share of 0.1 is cut off, all together use 110 % of the limit;
//   - a process without a call in the outage. Its first calls reach the store before the other
//     processes have charged what they have spent;
//   - the units of reservations that a queue may still use for 25 ms after the switch;
//   - limits with a Share of less than a unit. Each process has a whole unit, so ten processes may
//     use one each at the same time, as seldom as their Shares allow;
//   - hours, days and months. What other processes have used since the store's last reply is
//     unknown, and this process takes its share of that as well.
//
// # What it does not do
//
// During an outage a refusal by the API holds this process only. Afterwards the store learns the
// rest of the hold, but not the refusal: other processes keep their speed.
//
// A bucket without a reply from the store counts by its own limits, even after a SetLimits.
//
// The Store asks the store again for each operation on a key that is not away. A store whose
// operations fail slowly makes the first call of each key slow. The stores of this module fail
// immediately while they know that their server is down.
//
// # While a key is away
//
// Calls get what the fields of the Store choose: the store's error, which is the zero value, a
// share of every limit ([Store.Share]), or anything ([Store.Unlimited]). SetLimits and Resume fail
// with the store's error.
//
// With a Share each key has a bucket in this process. It begins full, so that the switch causes no
// burst. If a limit has a capacity of 40 and 20 units per second, each of four processes with a
// Share of 0.25 has 10 and 5. A call of 11 units then fails with the store's error. A refusal by
// the share names the whole limit. An [outbound.Explanation] says which of both decides.
// Reservations that were made in the store are void. A hold or a slow-down that was in force goes
// on. Units that a call from before does not need are lost. Units that it needs beyond its cost are
// charged here.
//
// A share of a window is a window of the same length. It begins full as if its units had left at
// the switch, because other processes may have used all of the window just before. So no call is
// admitted until a window after the switch. In shorter outages calls wait for that, or are refused
// with that time. If calls should continue meanwhile, use a leaky limit.
//
// A share of a calendar quota is that of what was left of it by the store's last reply. If there
// was no reply, or if the limits have changed since, the share is empty until the next one. It
// counts by this machine's time of day. A process remembers this, holds and slow-downs of 10_000
// keys.
//
// A share of less than a unit is a whole unit, as seldom as the Share allows. With a Window of 5
// calls an hour, each of ten processes has a call in two hours. A share of an hour, a day or a
// month stays less than a unit, because a whole one would exceed the Share.
//
// Calls in flight of all processes go on in the slots that this process holds for half a lease. A
// lease after the store's last answer it has its Share of the slots, rounded down. Until then, and
// without a whole slot, calls that need another slot fail with the store's error.
//
// # When the store is back
//
// Each half second, less a random part, the Store asks for all keys that are away. Once the store
// has answered for a key, the key's share begins again, full, and for two seconds at most its calls
// need both the share and the store. So no process uses the whole limit before all have charged
// what they have spent. A window admits no call in this time. Then calls use only the store.
//
// Half a second after its answer the store is charged with what the key has spent: one operation,
// of at most the capacity of each limit. As with Fillup levels rise up to the capacity, so a
// process that has spent more leaves a full bucket. A limit that had the time to drain since is not
// charged. Units that a window or a day has freed meanwhile are not charged either. A hold that is
// still in force is reported. Calls that were admitted in the outage return nothing to the store.
// Units that they have returned in the outage are charged if they had leaked by then.
package fallback
