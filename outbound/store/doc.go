// Package store is the contract of the stores that keep buckets, and the arithmetic of their
// limits.
//
// To use buckets, only [NewMemory] of this package is needed. To write a store, read [Store], [Op]
// and [Op.Apply]; [Memory] is an example. Package outbound is for callers: it knows costs, units
// and permits. A store knows none of these. It keeps limits, and charges each of them one number
// for each call.
//
// # To write a store
//
// A store has one method, Update: it takes the state of the key for itself, carries out what
// [Op.Apply] computes from the state and the time, keeps the result, and lets go. A store must
//   - change one key atomically, and take the time after it has the key for itself;
//   - keep the whole of [Stored] for at least as long as [Reply.Expire] says. If [Reply.Changed] is
//     false it need not write the key;
//   - carry an Op out once or not at all. If it is unknown which, the store returns an error, and
//     does not try again in a way that could charge twice;
//   - carry nothing of a failed Update out after a later Update of the key has returned;
//   - end by itself, within a second or a few, although ctx may have no end;
//   - return an error that matches [ErrUnavailable] if a wait may cure it, and only then.
//
// A store may keep op.Limits and op.Replacement, which do not change. It keeps nothing else of op
// when Update has returned, because the caller uses that memory again. A store that goes on after
// ctx has ended takes a copy first, with [Op.Clone].
//
// A store that keeps rows of bytes writes a key with [Stored.AppendBinary] and reads it with
// [Stored.UnmarshalBinary], which checks what it reads. If that fails, the store carries the Op out
// all the same, and reports the corrupt key to its operator.
//
// A store across a network also fills in [Reply.When] and [Reply.Received], so that reservations
// are due by its clock. It recognizes a repeated request by a number of its own.
//
// # Guarantees
//
// In any interval of length W at most Capacity + Rate*W units leave, for each leaky limit. At most
// Capacity units leave in any interval of a window's length, and in each period of a calendar. This
// holds through undone bookings, returns, settles, holds, pauses, slow-downs, Resume, changes of
// limits, and clocks that step back. All limits of a call are charged, or none. Order of booking is
// order of departure. Calls that were booked by different numbers of the limits together keep the
// largest capacity and the highest rate. Units beyond what a call acquired are not covered.
//
// No call waits longer than the shortest wait that keeps the limits and the order, with these
// exceptions:
//   - after a hold, a step of the clock, a change of limits or a settle, and after a booking was
//     returned before later ones, or in a pause. A call booked in a pause leaves 1 µs after it;
//   - a window lets calls of its last 64th wait for that long;
//   - what left less than [BookingGrace] before a hold, and what is reserved within [MaxReplyAge]
//     after it, counts in a window for longer by the hold. A call from before a hold may get
//     nothing back from a window;
//   - what is reserved within MaxReplyAge of a Resume counts as if it left, in a window a second
//     longer. So it is with what left less than BookingGrace before a hold that it ends;
//   - a hold of a key with a window makes reservations later than MaxReplyAge after it void,
//     because units are freed in it. Their callers return them and book again;
//   - a calendar admits no call within [Slack] of the end of a period, and reserves nothing in the
//     next period. A reservation that a hold moves past the end is void ([Charge.Void]);
//   - a fixed window of which it is unknown when the API's began counts until a window after its
//     last call. It admits calls until 20 ms before its end, and reserves only within it;
//   - a limit whose rate or window has changed returns nothing to calls from before.
//
// # One set of limits for a key
//
// All processes that share a key count by its limits in force. A process sends its own with each
// step, and the Number that it knows. If other limits are in force, the reply brings them. A
// process adopts them, unless its own program was made with other limits and it was started later:
// then it replaces them ([Op.Yields]). So in a rollout the newest process wins, and the rest adopts
// its limits within a reply. If limits have a [Limit.Version], the highest wins, and the time of
// start decides between equal ones. Limits that an operator sets hold until the program's own
// limits change. Two programs with different limits for one key are two releases forever.
//
// Levels of limits that stay are kept, and nothing refills. Reservations of the next second stand.
// Later ones are void, so that calls wait by the limits in force only.
//
// # The clock of a key
//
// Nothing leaks in the background. Each step first lets leak what has leaked since the last:
//
//	Dial()         At - Born - Skip
//	advance(now):  e = now - At;  At = now
//	               e > 0:  x = max(0, e - max(0, Rem));  Rem = max(-10 s, Rem - e)
//	                       x, Speed = dialOf(Speed, x);  Skip += e - x;  leak(x)
//	               else:   Skip += e                            // the clock stands
//
// Rem above 0 is what is left of a hold. Below 0 it is the time since the last hold ended. A clock
// that steps back by at most [Wobble] may come forward again, and that does not count twice. The
// key's clock runs as real time does, or slower after refusals, or stands in a hold. A pause sets
// it to what it shows at the pause's end. A reservation is a time on it, so a hold and a slow-down
// move every reservation of all processes without touching one. The reservations of a key with a
// window are void then if they are later than [MaxReplyAge] after the hold: what left before it
// ages meanwhile.
//
// # The numbers of a key
//
// Born names what the key has counted since it began. After a Resume or corrupt data it begins
// again, and a charge from before returns nothing. State.IDs is the number of the last booking
// ever, and Charge.ID that of the call. State.Top is the number of the last booking while it can be
// undone. A settle that adds units, a meter, a hold and a change of limits set it to 0. Undoing a
// booking sets it to the one before, [Charge.Prev]. Number goes on whenever reservations become
// void: with each change of the limits, and with a hold of a key with a window. Part.Since is the
// first Number whose charges a limit can return. State.Epoch counts series of refusals.
//
// # Slots of calls in flight
//
// A key can count calls in flight: its first limit says how many slots there are. Each process
// holds slots, hands them on among its own calls, and reports all that it holds with each [Ask].
// A process that asks and has less than its share gets what is free. A process that returns
// slots for other processes gets none in the same step. The order of the holders decides only how
// soon each asks again.
//
// At most as many calls are in flight as there are slots. This does not cover calls that were in
// flight in a process when it had not reached the store for five sixths of its lease, or for half
// of it if the store's clock was set forward meanwhile. A process that has ended loses its slots
// within a lease, if other processes ask. Two more cases are not covered: the store has lost its
// data, and another process asks before those that hold slots; and the clock is set forward more
// than once in a lease while a process is cut off. Such a key is apart from those that book calls:
// no step does both.
//
// ALGORITHM.md has the formulas, how to add a kind of limit, and what was searched.
package store
