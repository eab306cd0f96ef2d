// Package leak is the law of leaky buckets, windows and calendars that share a clock, and the
// contract of the stores that keep them.
//
// The arithmetic is pure functions of a state and a time. They read no clock, take no lock and
// allocate nothing. Every store of this module computes with them, or is tested against them.
// Package outbound is for callers; its buckets know costs, units and permits. A store knows none of
// these: it keeps named limits, and charges each one number.
//
// To write a store, read the next section, then [Store], [Op], [Op.Apply] and [Memory]. To change
// the law, read all of this page, then cases_test.go and back_test.go, where most of its rules are
// tests. To use buckets, nothing of this package is needed but [NewMemory].
//
// # To write a store
//
// A store has one method, Update: take the key's state for itself, carry out what [Op.Apply]
// computes from the state and the time, keep the result, let go. The example of [Store] does this
// in fifteen lines. Package outboundtest has the exam, TestStore: it quotes the sentence of the
// contract that a store breaks.
//
// Start from [Memory]. Package redisstore is no place to start: it does the arithmetic again in
// Lua, and gathers callers into trips.
//
// A store must
//   - change one key atomically, and take the time after it has the key for itself;
//   - keep the whole of [Stored], at least for as long as [Reply.Expire] says, and for 30
//     days beyond if Stamp is not 0. If [Reply.Changed] is false it need not write the key;
//   - carry an Op out once or not at all. If nobody knows which, it returns an error, and
//     does not try again in a way that could charge twice;
//   - end by itself, within a second or a few, although ctx may have no end;
//   - return an error that matches [ErrAway] if a wait may cure it, and only then.
//
// A store may keep op.Limits and op.Replacement, which nobody changes. It keeps nothing else of op
// when Update has returned: the caller uses Costs, Reports, the charges to which those point, Back,
// Move and Into again. Before that it writes to none of them, except that it may append to Into. So
// a store that goes on after ctx has ended takes a copy first, with [Op.Clone].
//
// A store that keeps rows of bytes writes a key with [Stored.AppendBinary] and reads it with
// [Stored.UnmarshalBinary]. That checks what it reads. If it fails the store has nothing to do but
// to tell its operator: the Stored is then garbage, and Apply takes the key for full to the brim,
// so that the key is neither open nor shut for ever.
//
// A store across a network should also fill in [Reply.When] and [Reply.Heard], so that places are
// due by its clock. It should tell a repeated request by a number of its own, and remember a
// refusal until that ends.
//
// # Words
//
//	limit       a capacity in units, and a rate at which units leak, per second
//	level       the units in a limit now, those of booked calls included; never below 0
//	brim        where the level equals the capacity. What is above it is booked: the queue
//	clock       each key has one of its own. It runs as real time does, or slower, or
//	            stands; never faster, and in one life never back
//	bucket time what this clock shows: State.Dial, "dial" for short. Levels leak by it
//	place       the bucket time at which a booked call may go. It never changes: a hold or
//	            a slow-down changes when the clock gets there
//	due         a call is due when no hold is left to serve and bucket time has reached
//	            its place. Late is bucket time beyond the place
//	booking     a fill, with its place now or later. A Charge is what is known of it
//	last        the place of the last booking, as bucket time from now
//	out         a booking is out until BookingGrace after its place
//	hold        the clock stands, because the API said so
//	refusal     the API's 429. An episode is the refusals that belong to one mistake
//	epoch       counts episodes. Each call knows the newest epoch that its worker had heard
//	            of when it left
//	speed       of the clock, 0.01 to 1. A refusal lowers it, time raises it
//	row         sixteen refusals, over which the law judges whether slowing down has helped
//	life        of a key, from its first use, or a Resume, until it expires or the next
//	            Resume. State.Born names it
//	version     counts changes of the limits for all
//	stamp       names the limits that were set for all; 0: none were
//	claim, lead what a worker with a backlog has booked, and the most that any has
//
// Times are nanoseconds of the store's clock, rates are units per second. Waits are rounded up and
// bucket time down, so that nothing goes a nanosecond early.
//
// # The clock
//
// Nothing drips in the background. Whoever looks at a key lets leak what has run out since the last
// look.
//
//	dial           At - Born - Skip
//	advance(now):  e = now - At;  At = now
//	               e > 0:  x = max(0, e - max(0, Rem));  Rem = max(-10 s, Rem - e)
//	                       x, Speed = dialOf(Speed, x);  Skip += e - x;  leak(x)
//	               else:   Skip += e                            // the dial stands
//	leak(x):       Level_i = max(0, Level_i - Rate_i x);  Last = max(-100 ms, Last - x)
//	dialOf(v, x):  k = ln 1.1 per minute;  up = ln(1/v)/k
//	               x < up:  v/k (e^kx - 1),  v e^kx
//	               else:    x - up + (1-v)/k,  1
//	realOf(v, y)   is its inverse: the real time in which the dial advances by y
//
// Rem above 0 is what is left of a hold. Below 0 it is the real time since the last hold ended. The
// speed is a known function of time, so its recovery needs no messages and places can be laid along
// it.
//
// A clock that steps back loses the step. If the step is no longer than Wobble, a second, the clock
// may come forward again with the next stamp, and that must not count a second time: advance
// returns how far the state is ahead, and [State.Keep] keeps it so.
//
// # Wait and Fill
//
//	wait(n):       w = max(0, Last, (Level_i + n_i - Capacity_i)/Rate_i where n_i > 0)
//	real(w):       max(0, Rem) + realOf(Speed, w)
//	fill(n, most): w = wait(n);  real(w) > most: refused, and nothing changes
//	               where n_i > 0:  Up_i = max(0, Rate_i w - Level_i)
//	                               Level_i = max(Level_i, Rate_i w) + n_i   // the joint rule
//	               Y_i = Level_i - Rate_i w + Ret_i
//	               Place = dial + w;  Before = dial + Last
//	               Free = Place + min N_i/Rate_i
//	               Last = max(Last, w);  Rem > 0: at least 1 µs
//
// A call takes its units from all limits or from none. It goes after all that are booked: order of
// booking is order of departure. So a call may wait for a limit that it does not count: after one
// report an hour is booked, a database row, which only a limit of ten a second counts, is refused
// for an hour. That is the price of an order that everybody can compute.
//
// A batch fills one call after the other, the first with its own longest wait, the others with the
// horizon, and stops at the first that is refused. [Limit.Takes] makes a cost of 0 nothing, one
// below a billionth of the capacity a billionth, and one above the capacity by rounding the
// capacity.
//
// # Unbook and Settle
//
// left is what of the level that c's own fill left is still there:
//
//	left_i         Y_i - Ret_i + Rate_i (Place - dial)
//	unbook(c):     only if c is the last booking (Place - dial = Last, Level_i = left_i for
//	               each limit, but for rounding), in its life, under its limits, not settled:
//	               Level_i = max(0, Level_i - N_i - Up_i);  Last = max(-100 ms, Before - dial)
//	settle(c, u):  u_i > N_i:  Level_i += u_i - N_i             // even above the brim
//	               u_i < N_i:  back = left_i - Rate_i max(0, Last), at least 0,
//	                           at most N_i - u_i and Level_i
//	                           Level_i -= back;  Ret_i += back
//	since(c, i):   Level_i - left_i - Rate_i max(0, Last)       // filled since, and gone
//
// Unbook undoes the last booking as if it had never been. Settle gives back only what its own fill
// left, less what has run past since, less what must still run until the last booking goes. Places
// never move earlier by themselves. A queue whose only place could be nearer undoes it and books it
// anew, in one step: Op.Move.
//
// What has run past a limit in a life, wanted or not, is Rate*dial + Ret. Ret holds what was given
// back or written off; to keep the two apart loses no digits in a long life.
//
// # Hold
//
//	hold(d, c):    d <= max(0, Rem): nothing changes.  ext = d - max(0, Rem)
//	               last = c is the last booking ? Before - dial : Last
//	               out = last > -100 ms
//	               x = out ? free(c) - dial, from 0 to ext : ext
//	                                                   // with windows: doc_windows.go
//	               Rem = d;  Skip -= x;  leak(x)
//	               s = the limit with the least Capacity/Rate
//	               out:   Last = max(Last, 1 µs);  brim = Capacity_s + Rate_s Last
//	               else:  brim = Capacity_s - N_s         // c not known: less 1
//	               Level_s = max(Level_s, brim);  Ret_s += Level_s
//	free(c):       min(Free, Place + min N_i/Rate_i);  c not known: dial
//
// If bookings are out, the clock stands, except for the time in which the refused call's own units
// run out. If none are, the leak runs on. After the hold the shortest limit has room for one call:
// one goes, then they drip. Longer limits keep their room. A hold that is repeated, or is shorter
// than the one in force, changes nothing; a longer one extends it. So holds may arrive in any
// order.
//
// # Refused, Succeeded and Resume
//
//	refused(e, d, most, c):
//	               e = Epoch, or a row is open: the row counts it
//	               e = Epoch:  Epoch++                           // a new episode
//	                  nothing was refused before: Fails = 0
//	                  a call has succeeded since: Fails = 0;  Speed = steer(Speed)
//	                      Trust > 0 and d = 0: no hold
//	                  else: Fails++
//	                  d = 0 or Fails > 0: d = max(d, min(1 s * 2^Fails, most, 1 h))
//	               hold(d, c)
//	succeeded(e):  e = Epoch: a call has succeeded since the last hold
//	resume():      Level_i = min(brim_i, Level_i + Rate_i max(0, Rem));  Ret_i = 0
//	               dial -= max(0, Rem);  Born = At;  Epoch++
//	               Rem, Last, Speed, Fails and the row as in a new key
//
// A refusal of a call that knew of an older epoch belongs to an episode that is known: it only
// extends the hold. A refusal with no success since the last hold says that the hold was too short,
// and nothing about the pace: the hold is doubled instead. The first success after a hold is
// therefore worth a report.
//
// A Resume is for operators. Bookings become void, and charges do not come back. The units that the
// hold has let leak ahead of real time are in the levels again.
//
// # Steering
//
// Refusals come because we are too fast, or at random, or by a limit that we do not know. Slowing
// down makes only the first kind fewer. [Row] counts calls and refusals, and after sixteen refusals
// the law compares. m is the calls for each refusal in the row.
//
//	steer(v):  cut = v * (the last hold ended within 10 s ? 0.7 : 0.9), at least 0.01
//	           Fast = max(Fast, v)
//	  Trust <= 0:            v = cut, not below max(Top/2, Fast*min(0.4, m/150))
//	                         while the row is not full, Per is taken for m, if it is known
//	  row full, and then a new one begins:
//	    the first            Per = m: compare with this
//	    m >= 2 Per           slowing down helps: Per = m, Fast = Top
//	    cut <= Fast*min(0.4, m/150), or -Trust = 3 and v <= 0.6 Fast
//	                         it does not: Trust = 128, Per = min(m, Per), v = Fast
//	    m < Per/2            worse than what we compare with: Per = m
//	    else                 Trust--, to -3: one more row in which it has not helped
//	  Trust > 0:             v stays
//	    m < Per/5            from the fifth refusal on: 0.7 v, and a new row
//	    m < Per/2            when the row is full: 0.8 v
//	    row full             Trust--;  m > 3 Per: Trust = 0.  At 0 all begins anew from v
//
// The clock speeds up by 10 % a minute meanwhile. A row is forgotten an hour after its last
// refusal. While Trust lasts, a refusal holds all for as long as the API has asked. One that asked
// nothing holds nobody, unless no call has succeeded since the one before: the call that got it
// waits by itself.
//
// # Limits that change, and workers that differ
//
// Limits match by Unit and Name. Levels are units and stay; nothing refills; a new limit starts
// empty, or with what is booked of its unit and has not gone. [State.Void] and [State.Change]
// replace the limits for all:
//
//	void():        Last > 1 s:  Level_i = min(Level_i, brim_i + Rate_i 1 s);  Last = 1 s
//	change():      Ret_i += (old Rate_i - Rate_i) dial
//	               a raised rate:  Level_i += (Rate_i - old Rate_i) min(max(0, Last), Level_i/old Rate_i)
//
// Places of the next second (Deaf) stand, because a worker may use them before it hears of the
// change. Later ones are void, and callers that wait book anew; the version then goes on by two.
// What is booked leaks as it was booked, so nobody overtakes it. Equal limits are no change.
//
// Workers with limits of their own, as while a new release rolls out, send them with each Op. The
// clock is common to all, and so are the levels of limits that match; each worker is held to its
// own capacity and rate. [State.Load] brings a level from one worker's shape to another's: up to
// the last booking it leaks as it was booked. Else it leaks by the lower of both rates until the
// key was last changed, and since then by the rate of the worker that looks. [Stored.Others] keeps
// the levels of limits that the last worker did not have, or that were in force before. Beyond
// eight, those that are empty go; of those that are not, 64 stay, and beyond these the one goes
// that would be empty first. Only that one starts empty too soon if it comes again: as where
// SetLimits gives 66 names in turn to a window, within that window. Level.Top remembers the larger
// capacity of before a change: so much may still be in the limit. Below 0 it says that the level
// counts on bookings, or on the rest of a hold, at a higher rate. A Resume ends those, and the
// limit is then full up to -Top.
//
// Three numbers tell what a charge may still touch:
//
//	Born      of another life: nothing comes back
//	Version   of other limits for all: nothing comes back. One further on, package outbound
//	          brings its charges along with [Charge.Follow]
//	Stamp     the Op counts by other limits than those that are set: the step does nothing,
//	          and Reply.Stale carries those in force. The caller computes its units again
//
// [Charge.Lost] marks the limits that are newer than the charge.
//
// # Shares of a fleet
//
// A worker close to the store asks more often than one far away, and would book most of a busy key.
// So the key keeps Lead, the most units that any worker with a backlog has booked, and each worker
// sends its own count, Op.Claim. While it is behind it may book places up to 100 ms after its
// first, or as long after it as the first is away. A worker whose backlog begins starts at the
// lead.
//
// # Rules that look simpler and are wrong
//
// Each has a counterexample, as capacity and rate. Try a rule of your own on these before you run
// the searches.
//
// "A fill adds its units to each level" (no joint rule). {1, 0.5/s} and {3, 1/s}, calls of 1 and 1,
// 1 and 3, 1 and 3 units: they go at 0, 2 and 4 s, and at 4 s the second limit has 4 units in it.
// The third goes at 5 s.
//
// "The k-th of a batch is due k/Rate after the first." The same calls show it: the other limits
// move the places. Fills are replayed one by one.
//
// "Undo takes the units back, and nothing else" (no Up). {1, 1/h} and {100, 10/s}, a report waits
// 59m59s for the first and is cancelled: the second limit stays at 35 990 of 100, and a row waits
// almost an hour for nothing.
//
// "What was not used comes back, at most the level." {1000, 100/s}, 1 000 units at 0, 900 at 9 s,
// then the first call says that it used 600. To return 400 puts 1 300 into 1 000. What is left of
// its own fill is 100.
//
// "What comes back need not wait for the booked" (no Last in settle). {1, 1/s}, calls at 0, 1 and 2
// s, the second gives its units back at 0.5 s: a new call would go at 2 s, beside the third. It
// goes at 3 s.
//
// "What leaked is Rate*dial" (no Ret). {2, 1/s}, two calls of 1 at 0; the first settles to 0; a
// call of 2 is booked for 1 s; the second settles to 0; a call of 1 goes at 1 s as well: 3 units in
// 2. It takes six operations to show.
//
// "A booking is the last if its place is." {1, 1/s} and {3, 1/s}: a call of the first limit and one
// of the second stand at 1 s. Undoing the first would forget the other, and a newcomer would
// overtake it. The levels must match as well.
//
// "A hold sets the clock back" instead of stopping it. {1, 1/s}, calls at 0, 1 and 2 s, a hold of
// 10 s at 0.5 s: the levels leak all the same, and a new call goes with the third. With the clock
// stopped it goes a second after it.
//
// "A hold fills every limit to the brim." {10/s} and {5000, 5000/h}, refused for 1 s: an hour's
// quota is gone. With the shortest limit full, less one call, calls go at 1 s, 1.1 s, and so on.
//
// "A hold fills the shortest limit to the brim", whole. {1, 1/h}, refused for an hour: the next
// call goes after two.
//
// "A hold is the time at which it ends", and a slow-down the time at which it began. A store's
// clock that is set back by an hour prolongs both by an hour. Rem and Speed are what is left and
// what is now.
//
// "The refused call frees the clock until its units have run out, as it stands today" (no Free).
// {2, 1/s}, calls of 2 at 0, 2 and 4 s; the first settles to 3 and holds for 4 s: the second goes
// at the end of the hold, and the third a second later, not two. {2, 2/s}, lowered to 0.5/s, held
// for 4 s: the second and the third go together.
//
// "Each 429 slows the clock" (no epoch). Nine calls in flight are refused together: 0.9^9 = 0.39 of
// the speed instead of 0.9, for one mistake.
//
// "Each episode slows the clock" (no rows). 1 % of refusals at random leave 12 % of 10/s, and 1 %
// of 100/s. "Only hold, and never slow down": a limit that is set at twice the API's uses 54 to 58
// % of it, and 12 to 13 % of the calls are refused. Rows of 4 to 8 refusals take chance for
// success: 11 to 25 % is left of 10/s. TestRefusalsAtRandomDoNotCollapseTheSpeed and
// TestALimitThatIsTooHighIsFound hold both ends.
//
// "New limits start full", or full if anything was booked lately. A program that sets its limits
// once a second stops: a level of 1 in {500, 500/h} becomes 500, empty after an hour.
//
// "New limits leave all places as they are." {1, 1/h}, three wait, the limit becomes 10/s: they
// wait for hours. "New limits make all places void": a worker that has not heard of it uses one
// beside a call that was booked anew.
//
// "Levels leak by the rate of the worker that looks." {2, 1/s} and {2, 2/s} of two workers. The
// first has booked 2 units for 0 and 2 for 2 s. By 2/s the second worker's 2 would go at 2 s, too:
// 4 units in 2. They go at 3 s.
//
// "The time of a key is whatever stamp comes." Workers' clocks 1 ms apart: the stamp goes back and
// forth, each step forward counts as time, and 2.95 times the quota goes.
//
// "A wait below a nanosecond is a nanosecond." {1, 1/28 days}: the last bits of the level ask for 1
// ns, for ever: 98 000 attempts in 50 ms. [Limit.Above] counts those bits as nothing.
//
// "A look may be kept." Each look at a slowed clock rounds bucket time down by part of a
// nanosecond: a caller that looks often enough stops it. [Op.Apply] keeps nothing if nothing has
// happened.
//
// # What it guarantees
//
// In any interval of length W at most Capacity + Rate*W units leave, for each leaky limit, and of a
// window and a calendar what their Kind promises: through cancels, returns, settles, holds,
// slow-downs, Resume, changes of limits, and clocks that step back. Calls booked under each version
// of the limits keep that version, and all together the larger one. Of workers that differ, all
// together keep the largest capacity and the highest rate; a limit that is the same for all is kept
// exactly.
//
// And no call waits longer than the shortest wait that keeps the limits and the order. This is not
// so after a hold, a step of the clock, a second change of limits or a settle, after a place was
// given back while others were booked behind it, and among workers that differ: there the law keeps
// the limit and lets calls wait longer.
//
// This holds at the times for which calls are admitted. A user that lets calls go up to τ late adds
// Rate*τ. Loss of room is allowed and bounded; excess is not.
//
// Not covered: a store's clock that steps forward, which looks like idleness (Rate times the step,
// at most a Capacity); units beyond what a call acquired; a store that loses state (a Capacity); a
// worker that uses a place without having heard the clock lately, and so misses a hold or a Resume.
// That after a hold one call goes at a time is no promise either, where calls leave late and two
// holds follow each other; the limit is kept.
//
// # What was searched
//
// search_test.go has 24 small worlds, window_search_test.go and held_test.go 28 with windows, and
// turn_test.go 10 of workers that differ. hours_test.go plays hours of a window, a limit and a
// calendar. Each world has a few limits, costs and kinds of operations. The searches visit every
// history of a world, to a depth. world_test.go plays a history, and law_test.go replays the
// departures through ideal buckets and checks what must be so of every state. prompt_test.go is the
// other side: it compares each wait with the shortest lawful one, computed without this arithmetic.
// Random histories of all operations together follow. FuzzFill compares with exact numbers, and
// FuzzApply and FuzzAnything feed garbage.
//
//	go test ./outbound/leak                    # a million histories and more, half a minute
//	DRIPFEED_LONG=1 go test ./outbound/leak -run 'NoSmall|NoLong' -timeout 60m -v
//
// The second goes a step deeper, through sixty million histories at least, in some twenty minutes.
// A change of the law goes in with both of them green.
//
// # Files
//
//	limit.go    Limit: its shape, what a cost takes of it, when a level has run down
//	clock.go    dialOf and realOf, and sums that do not overflow
//	steer.go    Row and steer: what refusals teach
//	leak.go     State and Level: Advance, Wait, Fill, Meter, Due, Expire
//	change.go   other limits, and Resume: Void, Change, Load, Turn
//	window.go   Log: a moving window, and one that begins with its first call
//	entry.go    Entry: what a log keeps, and what a hold makes of it
//	calendar.go Calendar and Period: limits by the hour, the day and the month
//	charge.go   Charge: Unbook, Settle, Since, Hold, Follow; Refused and Succeeded
//	sound.go    whether numbers can be those of a state
//	stored.go   Stored: what is kept of a key, with limits that others have or that were set
//	codec.go    a Stored as bytes, and codec_log.go its logs
//	store.go    Store, Op, Report, Reply: the contract
//	event.go    StoreEvent: what no operation of a store returns
//	stats.go    StoreStats: what a store across a network counts
//	apply.go    Op.Apply: the contract as one pure function
//	memory.go   Memory: the store of one process
package leak
