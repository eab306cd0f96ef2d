// # Windows
//
// A leaky limit paces: PerHour(5_000) lets a call go each 0.72 s, however few were made before. A
// window has all of its quota at once if there is room, and never more than Capacity in any
// interval of length Window. For that the key keeps a [Log] of it, on the key's dial:
//
//	log            entries {First, Last, Units, Aged}, in the order of their places
//	end(e)         Last + Window - Aged
//	wait(n):       w = max(0, Last, what the other limits ask)
//	               from the oldest entry on, while what has not ended + n > Capacity:
//	                   w = max(w, end(e) - dial);  e has ended
//	fill(n):       at the place p: forget what ended, for the longest window of the workers
//	               p <= First + Window/64 of the newest entry, and its Aged is 0:
//	                   it has n more, its Last is p
//	               else a new entry {p, p, n, 0}
//	settle(c, u):  the entry with First <= Place <= Last has u_i - N_i more, or less: a return
//	               is whole, because what never went out was never there. If the log knows nothing of
//	               the call, and u_i > N_i, an entry {p, p, u_i - N_i} comes in front of those with later
//	               places, as old as they are: no place is ever in two entries
//	unbook(c):     the same, if Total = Y, so that nothing was filled since
//	hold(d, c):    if all bookings are in the log, the dial goes on to the first place that it
//	               has not passed, or by d: x in doc.go. Then
//	               Aged += ext - x of the entries with Last + BookingGrace < dial
//	               units are put in until, from the end of the hold back, each k parts of the
//	               window have at least k/64 of Capacity - N_i, in entries that mark
//	resume():      bookings and marks go; nothing that has gone counts as later than now:
//	               Last' - Aged' = min(Last - Aged, dial') after it
//
// Each entry counts until a window after its last call, so the log is never below what really left.
// The dial never runs faster than real time, so a slow-down makes windows longer. A hold does not:
// while it lasts, the API's window goes on. A call that is later than BookingGrace is given back,
// so when the dial shows more than Last + BookingGrace, no call of the entry can leave after the
// hold, and all have left before it. Aged is how long the dial has stood since, so
//
//	dial - (Last - Aged) <= the real time since the last call
//
// in a hold less what is left of it, by which a Resume sets the dial back. Entries behind the first
// one that may have another call do not age: they and the calls in the same 64th of the window end
// late by the hold. No call joins an entry that has aged, because it would count for less than a
// window.
//
// Booked places never change. So that a call which waits for a window waits no longer for a hold,
// the dial goes on in the hold to the first of them. Beside tells whether all are in the log: it is
// the place of the last one that is not.
//
// A log has at most 128 entries: those of the past window, and as many bookings or marks. When it
// is full, two calls' entries, or two marks, become one that counts as long as the later: those
// that follow each other most closely. A mark stays apart from calls, because a Resume takes it
// out.
//
// 64 parts cost little: with calls at random, at 0.95 of 1000 a minute, the mean wait is 0.08 s,
// and 0.047 s with a log of each call (TestAWindowWaitsLittleLongerThanAnExactLog). Calls that come
// faster than they may go use more than 0.995 of the quota.
//
// A Fixed limit is a Moving one whose window may end sooner. The API's window begins with the first
// call after the last one ended, and all of it comes back together. The log knows its Begin, the
// place of a call that went at once when no other counted, and how far bucket time was behind real
// time there:
//
//	over           if nothing is held, the dial shows Begin + Window or more, and it is as far behind real
//	               time as it was there, all entries have ended
//
//	back           in a hold or not, where over will hold if nothing else happens: at Speed 1, and with Skip + Rem where
//	               over has Skip. Then wait(n) tells a call that is refused Begin + Window - dial
//	               if that is less, and the level that all comes back then. At a lower Speed what is over now
//	               is told as over only while the dial has not fallen too far behind
//
// That is so by real time, which the dial is behind after a hold or a slow-down: the API's window
// may then be over when the log's is not, and begin anew with any call. A call in the last 20 ms of
// a window may arrive when the API's is over, and begin it as well. A first call that is given back
// was none. Limits that are set with another Window leave open when the API begins the first one of
// that length. After any of these nobody knows where the API's window begins, and the limit is a
// Moving one until a window has passed without a call. A booking counts on nothing else, because it
// may be moved, and calls before it be given back, when the dial gets there. So a call may be
// refused for less time than it is ready to wait, and who comes back then goes. A caller that does
// says so with [Op.Returns], and is not booked beyond the window's end: the calls of a queue in the
// bucket's process go together when the window is over. In a key that others use, too, a queue
// keeps its place, or they would overtake it, and its calls go as through a Moving limit.
//
// Nobody sees that the first call arrives more than 10 ms late, or never, nor that the store's
// clock goes back between two steps. Then the API's window begins later than the log's, and more
// than n may meet it.
//
// # Calendars
//
// A limit by the calendar counts what this period and the next have taken, by the store's Unix
// time, because a day is no shorter for a hold. The worker knows the zone: with each Op it sends
// the [Period] that the time is in, by its estimate of the store's clock. The store goes on to the
// next one by itself. If the time is in neither, it does nothing, tells the time (Untimely), and
// the worker asks again.
//
//	wait(n):       t < End + 1 s:             this period has room, and within 1 s of End the
//	                                          next one as well; else t = End + 1 s
//	               t < Next - 1 s:            the next period has room; else refused until Next + 1 s
//
// Clocks differ and calls travel. So a call that goes within [Slack], a second, of the end counts
// in both periods, and the next one begins a second late. No skew below a second puts Capacity + 1
// calls into a period. Bookings go no further than the next period. A place that a hold or a
// slow-down has moved into a period to which it was not charged is void ([Moved]): its caller gives
// it back and books anew.
//
// # Limits of different kinds
//
// Of limits that match, what is in one is in the other when the kind changes: a level becomes one
// entry at the last booking, the units of a log become the level, and the least of this period.
// While workers differ the log of each stays beside the others': one for the windows of a name and
// unit, and one for each kind and zone of calendars. So each counts all that its own calls have
// taken. A Resume takes nothing out of a calendar's period, because the API goes on counting; it
// sets the dial back for the logs of all workers. Places that it, or a change of limits, makes void
// take nothing of the next period, unless that has almost begun.
//
// # Rules of windows that look simpler and are wrong
//
// "An entry counts from its first call." {2 per 1 s}, calls at 0 and 0.01 s, which share an entry:
// at 1 s both would be gone, and a call at 1.005 s is the third in a window.
//
// "A Resume forgets what is later than the dial." A Resume sets the dial back by the rest of a
// hold, and the calls that have gone are then later: the second Resume forgets them.
//
// "A hold moves entries back." Returns no longer find the entry, and are lost.
//
// "What is due when a hold begins has gone." {20/s} and {2 per 2 s}, calls at 0 and 50 ms, the
// first one is 50 ms late, and held for 4 s at 25 ms: it leaves after the hold with the second, and
// a third follows at once.
//
// "What has aged ends by real time, whatever happens." {2 per 2 s}, two calls, a hold of 5 s that
// ages them, and a Resume: they end at once. The dial has to go back by what is left of the hold.
//
// "In a hold the dial goes on to the first place in the log." {4/s} and {2 per 2 s}, calls of 1 and
// 1 and of 1 and 0 units, one of each booked: the second of them has no entry, and the calls behind
// it go with it.
//
// "In a hold the dial goes on to the first booked place, at full speed." At half speed a place is
// due in 60 s, after a hold of 40 s in 80 s real time instead of 120: a call of the next day goes
// before midnight.
//
// "A fixed window lasts until its end." {2 per 10.01 s} for an API's 10 s: calls at 0, 10.005,
// 10.01 and 10.01 s. The API's second window begins at 10.005 s, and has three.
//
// "A place counts on the end of a fixed window." {2 per 1 s}, calls at 0 and 0.5 s, and two places
// at 1 s. Then the first call is given back: the API's window begins at 0.5 s, and has three.
//
// "A fixed window may begin with a booked call." {2 per 1 s}, calls at 0 and 0.5 s, a place at 1 s,
// whose worker ends. The next call goes at 1.5 s, and two at 2 s: the API's window begins at 1.5 s,
// and has three.
//
// "After a hold a fixed window goes on." {2 per 1 s}, a call at 0, held for half a second, then one
// at 1 s real time and half a window by the dial, and two at the window's end, half a second later.
// The API's second window began at 1 s, and has three.
//
// "After a hold a fixed window begins with the next call." {2 per 1 s}, a call at 0, a Resume,
// calls at 0.5 s and 1 s: the API's second window begins at 1 s and not at 0.5, and two more at 1.5
// s are too many.
package leak
