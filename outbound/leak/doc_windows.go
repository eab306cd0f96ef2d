// # Windows
//
// A leaky limit paces: PerHour(5_000) lets a call go each 0.72 s, however few were made before.
// A window has all of its quota at once if there is room, and never more than Capacity in any
// interval of length Window. For that the key keeps a [Log] of it, on the key's dial:
//
//	log            entries {First, Last, Units}, in the order of their places
//	end(e)         Last + Window.  Fixed: First + Window
//	wait(n):       w = max(0, Last, what the other limits ask)
//	               from the oldest entry on, while what has not ended + n > Capacity:
//	                   w = max(w, end(e) - dial);  e has ended
//	fill(n):       at the place p: forget what ended, for the longest window of the workers
//	               p <= First + Window/64 of the newest entry: it has n more, its Last is p
//	               else a new entry {p, p, n}
//	settle(c, u):  the entry with First <= Place <= Last has u_i - N_i more, or less: a return
//	               is whole, because what never went out was never there
//	unbook(c):     the same, if Total = Y, so that nothing was filled since
//	hold(d, c):    units are put in until, from the end of the hold back, each k parts of the
//	               window have at least k/64 of Capacity - N_i, in entries that mark
//	resume():      bookings and marks go; nothing that has gone counts as later than now
//
// Each entry counts until a window after its last call, so the log is never below what really
// left. The dial never runs faster than real time, so a hold or a slow-down only makes windows
// longer. A log has at most 128 entries: those of the past window, and as many bookings or
// marks. When it is full, the two neighbours that are nearest to each other become one, which
// counts as long as the later.
//
// 64 parts cost little: with calls at random, at 0.95 of 1000 a minute, the mean wait is 0.08 s,
// and 0.047 s with a log of each call (TestAWindowWaitsLittleLongerThanAnExactLog). Calls that
// come faster than they may go use more than 0.995 of the quota.
//
// A Fixed window begins with the first call after the last one ended, and all of its units go
// together. That is so by real time, which the dial is behind after a hold or a slow-down: the
// API's window may be over when the log's is not, and begin anew with any call. [Log].Skip
// notices that. Until a window has passed without a call, each call then counts for a window
// from its own place on, as in a Moving one. So does a call in the last 20 ms of a window: it may
// arrive when the API's window is over, and begin the next one there.
//
// # Calendars
//
// A limit by the calendar counts what this period and the next have taken, by the store's Unix
// time, because a day is no shorter for a hold. The worker knows the zone: with each Op it sends
// the [Period] that the time is in, by its estimate of the store's clock. The store goes on to
// the next one by itself. If the time is in neither, it does nothing, tells the time (Untimely),
// and the worker asks again.
//
//	wait(n):       t < End + 1 s:             this period has room, and within 1 s of End the
//	                                          next one as well; else t = End + 1 s
//	               t < Next - 1 s:            the next period has room; else refused until Next + 1 s
//
// Clocks differ and calls travel. So a call that goes within [Slack], a second, of the end counts
// in both periods, and the next one begins a second late. No skew below a second puts Capacity + 1
// calls into a period. Bookings go no further than the next period. A place that a hold or a
// slow-down has moved into a period to which it was not charged is void ([Moved]): its caller
// gives it back and books anew.
//
// # Limits of different kinds
//
// Of limits that match, what is in one is in the other when the kind changes: a level becomes
// one entry at the last booking, the units of a log become the level, and the units of this
// period. A Resume changes nothing of a calendar, because the API goes on counting.
//
// # Rules of windows that look simpler and are wrong
//
// "An entry counts from its first call." {2 per 1 s}, calls at 0 and 0.01 s, which share an entry:
// at 1 s both would be gone, and a call at 1.005 s is the third in a window.
//
// "A Resume forgets what is later than the dial." A Resume sets the dial back by the rest of a
// hold, and the calls that have gone are then later: the second Resume forgets them.
//
// "A fixed window lasts until its end." {2 per 10.01 s} for an API's 10 s: calls at 0, 10.005,
// 10.01 and 10.01 s. The API's second window begins at 10.005 s, and has three.
//
// "After a hold a fixed window goes on." {2 per 1 s}, a call at 0, held for half a second, then
// one at 1 s real time and half a window by the dial, and two at the window's end, half a second
// later. The API's second window began at 1 s, and has three.
//
// "After a hold a fixed window begins with the next call." {2 per 1 s}, a call at 0, a Resume,
// calls at 0.5 s and 1 s: the API's second window begins at 1 s and not at 0.5, and two more at
// 1.5 s are too many.
package leak
