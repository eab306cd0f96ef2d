-- Windows and calendars: the limits with a kind. This stands in bucket.lua, where kinds is
-- nil in runs that meet leaky limits only.
--
-- A limit with a kind has a log. That of a window are entries: the first place and the last,
-- as bucket times, the units, and how much sooner it ends because of holds. The first is infinite
-- in a marker, which stands for no calls.
-- The newest entry and the oldest are at hand. A run that has room reads and writes no others.
--
--   l<limit> level, ret, the bucket time of both, rate, top, capacity, kind, window; here ret and top
--            are in how long the last of the units and the first of them go, of bucket time, or of
--            real time for a calendar. Of a window: the longest window of its workers, where the API's
--            window began and how far bucket time was behind there, if the limit is a fixed one, the place of
--            the last booking that is not in the log, total, the number of entries, the sum of their units, the oldest entry, and the newest. Of a
--            calendar: total, begin, end, the next end, the units of this period and of the next,
--            1 if nobody knows what calls have taken, by how much the Unix time is ahead, and how many
--            units there are at least
--   g<limit> the entries but for the newest
--   k<log>:<limit>
--            of a limit that was a window, or this calendar, before another worker took it for something
--            else: what l<limit> was, and the entries but for the newest
--
-- An interpreter of tests, gopher-lua, assigns wrong values where a call stands first in an
-- assignment to several locals. So those are assigned one by one.

kinds = {}
local moving, fixed, endless, entries, slack = 1, 2, 1 / 0, 128, 1e6
local tiny = 0.0005 -- half a nanosecond: sums of fractions are not exact
local rounding = 1 -- by so much the places of two calls may differ by rounding
local unix = now + ahead
local runs, run = {} -- of the calls that the request books: how many, their place, and the periods that they are of

if #head > 48 + 24 * n then
  kinds.unix = unix
  local at_byte = 49 + 24 * n
  for i = 1, n do
    local kind, window = unpacked('dd', head, at_byte)
    if kind > 0 then limits[i].kind, limits[i].window = kind, window end
    at_byte = at_byte + 16
  end
  for i = 1, n do
    local l = limits[i]
    if l.kind and l.kind > fixed then
      l.periods = {unpacked('dddd', head, at_byte)} -- this one and the next by the worker's estimate
      at_byte = at_byte + 32
    end
  end
end

local function round(x) return floor(x * 1e3 + 0.5) / 1e3 end

local booked = dial_before + last_before -- the place of the last booking
local all, rebuild, put, convert, unpark, turn -- of cold
local cold

local function fits(l, sum) return sum <= l.cap * (1 + 0.5e-9) end

local function new(l)
  l.log = {field = 'g' .. string.sub(l.field, 2), longest = 0, window = l.window or 0, begin = 0, skip = -endless, beside = booked, total = 0, count = 0, sum = 0, oldest = {0, 0, 0, 0}, first = 0, last = 0, units = 0, aged = 0,
    from = 0, till = 0, next = 0, this = 0, coming = 0, unknown = 0, off = 0, least = 0, kind = l.kind}
  return l.log
end

local unsure = -endless -- the skip of a log of which nobody knows when the API's window begins

-- brim fills a log to the brim, because nobody knows what calls have taken.
local function brim(l)
  local g = new(l)
  g.blob, g.dirty, spoilt = '', true, true
  if l.kind > fixed then
    g.this, g.unknown = l.cap, 1
  else
    g.longest, g.beside, g.count, g.sum, g.first, g.last, g.units = l.window, dial, 1, l.cap, endless, dial, l.cap
  end
end

-- sound reports whether an entry is no more than the log that it is in.
local function sound(g, first, last, units, aged)
  return aged >= 0 and aged <= most and last - aged <= g.last - g.aged + 1 and units >= 0 and units <= g.sum * (1 + 1e-6) + 1e-6 and last >= -most and last <= most and first >= -most
    and (first <= last or first == endless)
end

-- closed returns the entries but for the newest, as they are kept.
local function closed(l)
  local g = l.log
  if not g.blob then
    g.blob = g.count > 1 and redis.call('HMGET', key, g.field)[1] or ''
    if #g.blob ~= 32 * max(0, g.count - 1) then brim(l) end
  end
  return l.log.blob
end

local function entry(l, i)
  local g = l.log
  if i < g.count then
    if i == 1 then
      local o = g.oldest
      return o[1], o[2], o[3], o[4]
    end
    local blob = closed(l)
    g = l.log
    if i < g.count then
      local first, last, units, aged = unpacked('dddd', blob, 32 * i - 31)
      if sound(g, first, last, units, aged) then return first, last, units, aged end
      brim(l)
      g = l.log
    end
  end
  return g.first, g.last, g.units, g.aged
end

-- took adds units to the total, or more if the sum would hide them.
local function took(g, units) g.total = g.total + max(units, 1.6e-14 * g.total) end

-- recount adds the entries up, where a difference would keep what a sum with a huge settle has lost.
local function recount(l, was)
  local g, sum = l.log, 0
  if was < 1000 * l.cap then return end
  g.sum = max(was, g.sum) -- which no entry is above
  for i = 1, g.count do
    local _, _, units = entry(l, i)
    sum = sum + units
  end
  if g == l.log then g.sum = sum end
end

-- add appends an entry.
local function add(l, first, last, units)
  local blob = closed(l)
  local g = l.log
  if g.count > 0 then
    if g.count == 1 then g.oldest = {g.first, g.last, g.units, g.aged} end
    g.blob, g.dirty = blob .. pack('dddd', g.first, g.last, g.units, g.aged), true
  else
    g.sum = 0
  end
  g.count, g.sum, g.first, g.last, g.units, g.aged = g.count + 1, g.sum + units, first, last, units, 0
  if g.count > entries then
    cold()
    rebuild(l, all(l))
  end
end

-- forget drops what has ended at the dial time from, for the longest window in use.
local function forget(l, from)
  local g, gone = l.log, 0
  if l.window > g.longest then g.longest = l.window end
  local sum = g.sum
  if g.last - g.aged + g.longest <= from + tiny then gone = g.count end -- the newest ends last
  while gone < g.count do
    local _, last, units, aged = entry(l, gone + 1)
    if last - aged + g.longest > from + tiny then break end
    gone, sum = gone + 1, sum - units
  end
  if gone == 0 or g ~= l.log then return end
  if gone == g.count then
    g.dirty = g.dirty or gone > 1
    g.count, g.sum, g.blob, g.longest = 0, 0, '', l.window
    return
  end
  local blob = closed(l)
  if g ~= l.log then return end -- it was garbage
  local was = g.sum
  g.blob, g.count, g.dirty = string.sub(blob, 32 * gone + 1), g.count - gone, true
  if g.count > 1 then
    g.oldest = {unpacked('dddd', g.blob)}
    recount(l, was)
    if was < 1000 * l.cap then g.sum = max(0, sum) end
  else
    g.sum = g.units
  end
end

local function real(w) return max(0, rem) + (speed < 1 and real_of(speed, w) or w) end

local function part(l) return floor(floor(l.window * 1e3 + 0.5) / 64) / 1e3 end

-- ends returns the dial time from which an entry counts no more.
local function ends(l, last, aged) return last - aged + l.window end

-- sure reports whether the API's window of a fixed limit is known, where the dial is so far behind real time.
local function sure(l, behind)
  local g = l.log
  behind = behind - g.skip
  return l.kind == fixed and behind <= 1000 + tiny and behind >= -1000 - tiny and g.longest <= l.window
end

-- over reports whether all units of a fixed limit count no more, because the API's window has ended in which
-- they went: now, or when the dial showed before.
local function over(l, before)
  local at, behind, held = dial, skip, rem
  if before then at, behind, held = before, skip_before, rem_before end
  return held <= 0 and sure(l, behind) and at >= l.log.begin + l.window - tiny
end

-- comes returns the bucket time after which over holds, if nothing else happens; infinite: that is not known.
local function comes(l)
  if speed < 1 or not sure(l, skip + max(0, rem)) then return endless end
  return max(0, round(l.log.begin + l.window - dial))
end

-- begin finds out whether a call at a place begins the API's window of a fixed limit.
local function begin(l, place)
  local g = l.log
  if over(l) then
    g.dirty = g.dirty or g.count > 1
    g.count, g.sum, g.blob = 0, 0, ''
  end
  if g.count == 0 and rem <= 0 and place <= dial + tiny then
    g.begin, g.skip = place, skip
  elseif g.count == 0 or place >= g.begin + l.window - 20000 - tiny then
    g.skip = unsure
  end
end

-- fill takes units at bucket time w from now. Before it, the log forgets what ended before now, or
-- before the hold in force began.
local function fill(l, units, w)
  local place = round(dial + w)
  took(l.log, units)
  forget(l, dial - max(0, rem))
  if l.kind == fixed then begin(l, place) end
  local g = l.log
  if g.count > 0 and g.last > place + rounding then -- marks: bookings that were later have been given back
    cold()
    put(l, place, units, part(l))
    return
  end
  if g.count > 0 and g.first <= g.last and g.aged == 0 and place <= max(g.last + rounding, g.first + part(l)) + tiny then
    g.last, g.units, g.sum = max(g.last, place), g.units + units, g.sum + units
    return
  end
  add(l, place, g.count > 0 and max(place, g.last) or place, units)
end

-- look writes what the log comes to at a dial time, or at a time of the store, as the limit's level.
local function look(l, at, time)
  local g = l.log
  if l.kind > fixed then
    local x, till, next = (time or now) + g.off, g.till * 1e6 + slack, g.next * 1e6 + slack
    local this, coming = g.this, g.coming
    if g.till ~= 0 and x >= next then
      this, coming = 0, 0
    elseif g.till ~= 0 and x >= till then
      this, coming, till = coming, 0, next
    end
    local left = till - x
    if g.till == 0 or g.least > this then -- of which period the units are is known with the next step
      this = max(this, g.least)
      left = 2.7648e12
    end
    l.level, l.top, l.ret = this, 0, 0
    if this > 0 then l.top, l.ret = left, left end
    if coming > 0 then l.ret = next - x end
    return
  end
  local sum, next = g.sum, 0
  for i = 1, over(l, time and at) and 0 or g.count do
    local _, last, units, aged = entry(l, i)
    next = ends(l, last, aged) - at
    if next >= tiny then break end
    sum = sum - units
  end
  if next >= tiny then
    local all = time and endless or comes(l)
    l.level, l.top, l.ret = max(0, sum), min(round(next), all), min(round(ends(l, l.log.last, l.log.aged) - at), all)
  else
    l.level, l.top, l.ret = 0, 0, 0
  end
end

local function look_all()
  for i = 1, n do
    if limits[i].kind then look(limits[i], dial) end
  end
end

-- read reads the level of a limit with a kind, and its log.
local function read(l, was)
  if #was ~= 184 and #was ~= 136 then return nil end
  local level, ret, shown, rate, top, cap, kind, window = unpacked('dddddddd', was)
  local g = new(l)
  if not (level >= 0 and level < 1e18 and ret >= 0 and ret < 1e18 and top >= 0 and top < 1e18 and shown > -1e17 and shown < 1e17
    and cap > 0 and cap <= 1e12 and rate >= 0 and rate < 1e13) then
    return nil
  end
  if #was == 184 and (kind == moving or kind == fixed) then
    g.longest, g.begin, g.skip, g.beside, g.total, g.count, g.sum = unpacked('ddddddd', was, 65)
    g.window = max(g.window, window)
    local o = {unpacked('dddd', was, 121)}
    g.oldest = o
    g.first, g.last, g.units, g.aged = unpacked('dddd', was, 153)
    if not (window > 0 and window < most and g.longest >= 0 and g.longest < most and g.count >= 0 and g.count <= entries and g.count % 1 == 0
      and g.sum >= 0 and g.sum < 1e17 and g.last <= most and g.units <= 1e15 and (g.count < 1 or sound(g, g.first, g.last, g.units, g.aged))
      and (g.count < 2 or sound(g, o[1], o[2], o[3], o[4])) and g.beside == g.beside and g.begin == g.begin) then
      return nil
    end
  elseif #was == 136 and (kind == 3 or kind == 4 or kind == 5) then
    g.total, g.from, g.till, g.next, g.this, g.coming, g.unknown, g.off, g.least = unpacked('ddddddddd', was, 65)
    if not (g.least >= 0 and g.least < 1e18 and g.this >= 0 and g.this < 1e15 and g.coming >= 0 and g.coming < 1e15 and g.off > -1e17 and g.off < 1e17
      and (g.till == 0 or g.from > -9e9 and g.from < g.till and g.till < g.next and g.next < 9e9)) then
      return nil
    end
  else
    return nil
  end
  if not (g.total > -1e25 and g.total < 1e25) then return nil end
  g.kind = kind
  return {field = l.field, level = level, ret = ret, top = top, shown = shown, rate = rate, cap = cap, kind = kind, window = window, log = g}
end

-- place_of returns the name of the field of another log of a limit. Both kinds of windows have one.
local function place_of(l)
  local of = l.kind > fixed and string.format('%d%.0f', l.kind, l.window) or '1'
  return 'k' .. of .. ':' .. string.sub(l.field, 2)
end

-- load reads the level of a limit, if either it has a kind or that of the worker before has. It
-- reports whether the level makes sense.
function kinds.load(l, was, differ)
  if not was then
    new(l)
    if differ then
      cold()
      turn(l)
    end
    return true
  end
  local level
  if #was <= 48 then
    if #was ~= 32 and #was ~= 40 and #was ~= 48 then return false end
    cold()
    local _, shown, rate
    level, _, shown, rate = unpacked('dddd', was)
    if not (rate > 0 and level >= 0 and level <= 1e15 + 9.3e9 * rate and shown > -1e17 and shown < 1e17) or not unpark(l) then return false end
    level = max(0, level - rate * (dial_before - shown) / 1e6)
  else
    local o = read(l, was)
    if not o then return false end
    if not l.kind or place_of(o) ~= place_of(l) then -- the log is there when its worker comes again
      look(o, dial_before, at_before)
      level, l.parked = o.level, o
    end
    if not l.kind then -- it leaks from now on
      l.log = nil
      l.level, l.top = max(0, level - l.rate * (dial - dial_before) / 1e6), level > l.cap and o.cap > l.cap and o.cap or 0
      if differ then l.ret = 1e-9 * max(level, l.cap) + 4e-9 * l.rate end
      return true
    end
    if level then
      cold()
      if not unpark(l) then return false end
    end
  end
  if level or l.log.kind ~= l.kind or differ then
    cold()
    convert(l, level, dial_before + max(0, last_before), dial_before)
    if differ then turn(l) end
  end
  return true
end

-- untimely returns the answer to a worker that has told no period of now. A time that is no more than two
-- seconds before the period of a calendar is of another server's clock, and the period stays.
function kinds.untimely()
  for i = 1, n do
    local l = limits[i]
    if l.periods then
      local from, till, next, after = unpack(l.periods)
      local x = unix
      if not garbage and l.log.till ~= 0 then
        local begins = l.log.from * 1e6 + slack
        if x < begins and x >= begins - 2 * slack then x = begins end
      end
      if from > -9e9 and from < till and till < next and next < after and after < 9e9 then
        if x >= till * 1e6 + slack then from, till, next = till, next, after end
        if x >= from * 1e6 + slack and x < till * 1e6 + slack then l.period = {from, till, next} end
      end
      -- A request that was carried out before has its answer, whatever the time is now.
      if not l.period and not (r and #r >= 24 and unpacked('d', r) == seq) then
        return {'untimely', pack('dd', unix, set and stamp or -version)}
      end
    end
  end
end

-- start brings calendars to the periods of now.
function kinds.start()
  for i = 1, n do
    local l = limits[i]
    local g, p = l.log, l.period
    if l.kind and garbage then
      brim(l)
      g = l.log
    end
    if l.kind and p then
      g.off = ahead
      if g.till ~= p[2] then
        local coming = 0
        if g.till > p[1] then -- the zone is another one, or the clock was set back
          if g.from >= p[2] then coming = g.this end
          g.this = g.this + g.coming
        elseif g.till == p[1] or g.next > p[1] then
          g.this, g.unknown = g.coming, 0
        elseif g.till ~= 0 then -- else it has units, but of no period yet
          g.this, g.unknown = 0, 0
        end
        g.coming, kinds.begun = coming, true
      end
      g.this, g.least = max(g.this, g.least), 0
      g.from, g.till, g.next = p[1], p[2], p[3]
    end
  end
  look_all()
end

-- moves is wait by all entries.
local function moves(l, units, w)
  local sum = l.log.sum + units
  for i = 1, l.log.count do
    if fits(l, sum) then break end
    local _, last, taken, aged = entry(l, i)
    local till = ends(l, last, aged) - dial
    w = max(w, round(till))
    sum = sum - taken
  end
  return w
end

-- wait returns the first bucket time from now, not before w, at which units have room; with back, at which a call
-- could go that came back then. kinds.back then says that the two may differ.
function kinds.wait(l, units, w, back)
  if l.kind > fixed then return w end
  if over(l) then
    kinds.back = kinds.back or speed < 1
    return w
  end
  local soonest = w
  w = moves(l, units, w)
  if l.kind == fixed and w > soonest then
    local all = comes(l)
    if all <= w then
      if back then return max(soonest, all) end
      kinds.back = true
    end
  end
  return w
end
-- reach returns the bucket time after which the real time x has passed.
local function reach(x)
  local y = x - max(0, rem)
  if y <= 0 then return 0 end
  local w = speed < 1 and dial_of(speed, y) or y
  for _ = 1, 1000 do
    if real(w) >= x - tiny then break end
    w = w + 0.001
  end
  return w
end

-- ask returns the first real time from x on at which units have room in a calendar, and whether
-- that can be booked.
local function ask(l, units, x)
  local g = l.log
  local till, next = g.till * 1e6 + slack - unix, g.next * 1e6 + slack - unix
  if x < till - tiny then
    if fits(l, g.this + units) and (x < till - 2 * slack - tiny or fits(l, g.coming + units)) then return x, true end
    x = till
  end
  if x < next - 2 * slack - tiny and fits(l, g.coming + units) then return x, true end
  return max(x, next), false
end

-- calendars is wait for all calendars: each may ask for a later place than the others. With back, what is over now
-- is so no more when a slow clock has fallen further behind.
function kinds.calendars(u, w, slowest, back)
  local books, again = true, true
  for _ = 1, 4 * n do
    if not again or not books then break end
    again = false
    for i = 1, n do
      local l = limits[i]
      if back and speed < 1 and l.kind == fixed and u[i] > 0 and over(l) and not sure(l, skip + real(w) - w) then
        local at = moves(l, u[i], w)
        if at > w then
          w = at
          slowest, again = i - 1, true
        end
      end
      if l.kind and l.kind > fixed and u[i] > 0 then
        local x = real(w)
        local at, can = ask(l, u[i], x)
        if at > x then
          w = reach(at)
          slowest, again = i - 1, true
        end
        books = books and can
      end
    end
  end
  return w, slowest, books and not again
end

local function fill_calendar(l, units, x)
  local g = l.log
  local till = g.till * 1e6 + slack - unix
  took(g, units)
  if x >= till - tiny then
    g.coming = g.coming + units
    return g.next
  end
  g.this = g.this + units
  if x < till - 2 * slack - tiny then return g.till end
  g.coming = g.coming + units
  return -g.till
end

-- fill takes units at bucket time w from now.
function kinds.fill(l, units, w)
  l.of = 0
  if units > 0 then
    if l.kind > fixed then
      l.of = fill_calendar(l, units, real(w))
    else
      fill(l, units, w)
    end
  else
    l.log.beside = round(dial + w)
  end
end

-- note adds calls that were booked for one place to the runs.
function kinds.note(place, count)
  local next = {count, place}
  for i = 1, n do
    local l = limits[i]
    if l.kind and l.kind > fixed then next[#next + 1] = l.of end
  end
  local same = run ~= nil
  for i = 2, #next do same = same and run[i] == next[i] end
  if same then
    run[1] = run[1] + count
  else
    runs[#runs + 1], run = next, next
  end
end

function kinds.runs()
  for i = 1, #runs do runs[i] = pack(string.rep('d', #runs[i]), unpack(runs[i])) end
  return table.concat(runs)
end

-- room returns how many calls of so many units fit at once.
function kinds.room(l, units)
  local sum = l.log.sum
  if l.kind > fixed then
    sum = l.log.this
    if l.log.till * 1e6 - slack - unix < tiny then sum = max(sum, l.log.coming) end
  end
  return floor((l.cap * (1 + 0.5e-9) - sum) / units)
end

-- kept returns in how much bucket time the log forgets its last entry, if other workers have a longer
-- window, or the limit is a fixed one, whose level tells when its window is over; else 0.
function kinds.kept(l)
  local g = l.log
  return g.count > 0 and (l.kind == fixed or g.longest > l.window) and g.last - g.aged + g.longest - dial or 0
end

-- record returns what is kept of a limit.
function kinds.record(l)
  local g = l.log
  if l.kind > fixed then
    return pack('ddddddddddddddddd', l.level, l.ret, dial, l.rate, l.top, l.cap, l.kind, l.window,
      g.total, g.from, g.till, g.next, g.this, g.coming, g.unknown, g.off, g.least)
  end
  local o = g.oldest
  return pack('ddddddddddddddddddddddd', l.level, l.ret, dial, l.rate, l.top, l.cap, l.kind, l.window,
    g.longest, g.begin, g.skip, g.beside, g.total, g.count, g.sum, o[1], o[2], o[3], o[4], g.first, g.last, g.units, g.aged)
end

-- keep adds the closed entries of limits to what is written, if they have changed.
function kinds.keep(list, values)
  for _, l in pairs(list) do
    local o = l.parked
    if o then
      local blob = closed(o)
      values[#values + 1], values[#values + 2] = place_of(o), kinds.record(o) .. blob
      if o.kind <= fixed then redis.call('HDEL', key, o.log.field) end
    end
    if l.kind and l.log.dirty then
      if l.log.blob == '' then
        redis.call('HDEL', key, l.log.field)
      else
        values[#values + 1], values[#values + 2] = l.log.field, l.log.blob
      end
    end
    if l.taken then redis.call('HDEL', key, l.taken) end
  end
  return values
end

-- cold creates the functions that a run which only books seldom needs.
cold = function()
  if all then return end

  -- all returns the numbers of all entries.
  all = function(l)
    local blob = closed(l)
    local numbers = #blob / 8
    local t = {unpacked(string.rep('d', numbers), blob, 1)}
    local g = l.log
    t[numbers + 1] = nil
    for k = 1, numbers, 4 do
      if not sound(g, t[k], t[k + 1], t[k + 2], t[k + 3]) or k > 1 and t[k + 1] - t[k + 3] < t[k - 3] - t[k - 1] - 1 then
        brim(l)
        g, t, numbers = l.log, {}, 0
        break
      end
    end
    if g.count > 0 then t[numbers + 1], t[numbers + 2], t[numbers + 3], t[numbers + 4] = g.first, g.last, g.units, g.aged end
    return t
  end

  -- merge makes one entry of the two calls' entries, or of the two markers, that follow each other most closely.
  local function merge(l, t)
    local at, with, least = 1, 5, endless
    local call, mark = 0, 0 -- the latest entry of each kind; 0: there was none
    for k = 1, #t - 3, 4 do
      local marks = t[k] > t[k + 1]
      local a = call
      if marks then a = mark end
      if a > 0 then
        local first = t[a]
        if marks then first = t[a + 1] + 0.001 end
        local span = t[k + 1] - t[k + 3] - first + t[a + 3]
        if span < least - tiny then at, with, least = a, k, span end
      end
      if marks then mark = k else call = k end
    end
    local counts = max(t[at + 1] - t[at + 3], t[with + 1] - t[with + 3])
    t[with] = min(t[at], t[with]) -- a marker's first is endless
    t[with + 1] = max(t[at + 1], t[with + 1])
    t[with + 2] = t[at + 2] + t[with + 2]
    t[with + 3] = round(t[with + 1] - counts)
    for i = at, #t do t[i] = t[i + 4] end
  end

  -- rebuild makes these entries the log.
  rebuild = function(l, t)
    local g = l.log
    while #t > 4 * entries do merge(l, t) end
    local k, sum = #t - 4, 0
    for i = 3, #t, 4 do sum = sum + t[i] end
    g.count, g.sum, g.blob, g.dirty = #t / 4, sum, '', true
    if k >= 0 then g.first, g.last, g.units, g.aged = t[k + 1], t[k + 2], t[k + 3], t[k + 4] end
    if k > 0 then
      g.oldest = {t[1], t[2], t[3], t[4]}
      local parts = {}
      for i = 1, k, 4 do parts[#parts + 1] = pack('dddd', t[i], t[i + 1], t[i + 2], t[i + 3]) end
      g.blob = table.concat(parts)
    end
  end

  -- change changes an entry.
  local function change(l, i, first, last, units, aged)
    local g = l.log
    local _, _, was = entry(l, i)
    if i == g.count then
      g.first, g.last, g.units, g.aged = first, last, units, aged
    else
      local blob = closed(l)
      if g ~= l.log then return end -- it was garbage
      if i == 1 then g.oldest = {first, last, units, aged} end
      g.blob = string.sub(blob, 1, 32 * i - 32) .. pack('dddd', first, last, units, aged) .. string.sub(blob, 32 * i + 1)
      g.dirty = true
    end
    local all = g.sum
    g.sum = g.count == 1 and units or max(0, all + units - was)
    recount(l, all)
  end

  local function remove(l, i)
    local g, blob = l.log, closed(l)
    local _, _, units = entry(l, i)
    local first, last, before, aged = 0, 0, 0, 0
    if i > 1 then first, last, before, aged = entry(l, i - 1) end
    if g ~= l.log then return end -- it was garbage
    g.dirty = true
    if i == g.count then
      g.first, g.last, g.units, g.aged = first, last, before, aged
      blob = string.sub(blob, 1, 32 * max(0, i - 2))
    else
      blob = string.sub(blob, 1, 32 * i - 32) .. string.sub(blob, 32 * i + 1)
    end
    local sum = g.sum
    g.blob, g.count, g.sum = blob, g.count - 1, max(0, sum - units)
    if g.count > 1 then g.oldest = {unpacked('dddd', blob)} end
    if g.count < 2 then g.sum = g.count * g.units end
    recount(l, sum)
  end

  -- find returns the index of the entry that has the units of a call at a place.
  local function find(l, place)
    local near = 0.0006 + 4e-16 * math.abs(place)
    for i = l.log.count, 1, -1 do
      local first, last = entry(l, i)
      if first <= last then -- a marker has no place
        if last < place - near then return nil end
        if first <= place + near then return i, near end
      end
    end
  end

  -- put puts units in that went, or go, at a place.
  put = function(l, place, units, within)
    local t = all(l)
    local k = #t + 1 -- after the entry that ends here: first, last, units, aged
    while k > 1 and t[k - 3] > place + rounding do
      if t[k - 4] <= place + rounding then -- no mark
        t[k - 2] = t[k - 2] + units
        return rebuild(l, t)
      end
      k = k - 4
    end
    if k > 1 and t[k - 4] <= t[k - 3] and t[k - 1] == 0 and place <= max(t[k - 3] + rounding, t[k - 4] + within) + tiny then
      t[k - 3], t[k - 2] = max(t[k - 3], place), t[k - 2] + units
      return rebuild(l, t)
    end
    local last, aged = place, 0
    if k > 1 then last = max(place, t[k - 3]) end
    if k < #t then aged = max(0, last - t[k + 1] + t[k + 3]) end
    for j, x in ipairs({place, last, units, aged}) do table.insert(t, k + j - 1, x) end
    rebuild(l, t)
  end

  -- raise brings what counts of the log at a dial time up to a level, with an entry at a place.
  local function raise(l, level, place, at)
    local more = level
    for i = 1, l.log.count do
      local _, last, units, aged = entry(l, i)
      if ends(l, last, aged) > at + tiny then more = more - units end
    end
    if more > l.cap * 0.5e-9 then
      put(l, round(place), more, 0)
      l.log.skip = unsure
    end
  end

  -- void takes out what is booked for later than the dial time until, and with markers those, too.
  local function void(l, till, markers)
    if l.kind > fixed then
      local g = l.log
      if now + g.off + real(till - dial) < g.till * 1e6 - slack - tiny then g.coming = 0 end
      return
    end
    local t, kept = all(l), {}
    for k = 1, #t, 4 do
      local marks = t[k] > t[k + 1]
      if marks or t[k] <= till + tiny then
        for i = k, k + 3 do kept[#kept + 1] = t[i] end
      end
    end
    local k = #kept - 3
    if k > 0 and kept[k] <= kept[k + 1] then kept[k + 1] = min(kept[k + 1], max(kept[k], till, kept[k - 3] or till)) end
    if markers then
      t, kept = kept, {}
      for k = 1, #t, 4 do
        if t[k] <= t[k + 1] then
          for i = k, k + 3 do kept[#kept + 1] = t[i] end
        end
      end
    end
    if #kept < 4 * l.log.count or k > 0 and kept[k + 1] ~= l.log.last then rebuild(l, kept) end
  end

  -- become makes entries count by another kind of window.
  local function become(l)
    local g = l.log
    if g.kind ~= l.kind then g.kind, g.skip = l.kind, unsure end
  end

  -- convert brings a log to a limit's kind. level is what was in a log, or a level, that it does not
  -- share; at is the dial time of that.
  convert = function(l, level, place, at)
    become(l)
    if level and l.kind > fixed then
      l.log.least = max(l.log.least, level)
    elseif level then
      raise(l, level, place, at)
      l.log.beside = booked
    end
  end

  -- unpark reads the log that a limit had before another worker took it for something else. o has been the
  -- limit in this run.
  unpark = function(l, o)
    local field = place_of(l)
    if o and o.parked and place_of(o.parked) == field then
      l.log = o.parked.log
      return l.log
    end
    local was = redis.call('HMGET', key, field)[1]
    if not was then return new(l) end
    local size = #was >= 56 and unpacked('d', was, 49) > fixed and 136 or 184
    if #was < size or not read(l, string.sub(was, 1, size)) then return nil end
    local g = l.log
    g.blob, g.dirty, l.taken = string.sub(was, size + 1), true, field
    return #g.blob == 32 * max(0, g.count - 1) and g or nil
  end

  -- turn makes the total differ from what any charge expects: Unbook takes none of those for the
  -- last booking. Nor need it be in the log.
  turn = function(l)
    local g = l.log
    took(g, 1e-9 * l.cap)
    g.beside = booked
  end

  function kinds.meter(l, units)
    local more = min(units, l.cap - l.level)
    if more > l.cap * 0.5e-9 then
      if l.kind > fixed then
        fill_calendar(l, more, 0)
      else
        fill(l, more, max(0, last))
      end
      look(l, dial)
    end
  end

  -- settle_period adds more units to the periods that a call is of, or takes some back.
  local function settle_period(g, of, more)
    local till, both = math.abs(of), of < 0
    if till == g.till or both and till == g.from then g.this = max(0, g.this + more) end
    if till == g.next or both and till == g.till then g.coming = max(0, g.coming + more) end
  end

  -- settle makes the units of a call into used. lost says that the limit knows nothing of the call,
  -- and goes that the call takes something of another limit.
  function kinds.settle(l, place, of, units, used, lost, goes)
    if lost then
      if used <= units then return end
      place, of = dial, 0
    end
    if l.kind > fixed then
      settle_period(l.log, of == 0 and l.log.till or of, used - units)
    else
      place = round(place)
      local i, near = find(l, place)
      if i then
        local first, last, taken, aged = entry(l, i)
        if used == 0 and math.abs(place - l.log.begin) < near then l.log.skip = unsure end
        taken = max(0, taken + used - units)
        if taken > l.cap * 0.5e-9 then
          change(l, i, first, last, taken, aged)
        else
          remove(l, i)
          if goes then l.log.beside = max(l.log.beside, place) end
        end
      elseif used > units and place + l.window > dial + tiny then
        put(l, place, used - units, 0)
        l.log.skip = unsure
      end
    end
    look(l, dial)
  end

  -- undo takes the units of the last booking out.
  function kinds.undo(l, c, k)
    local units = c.n[k]
    if units ~= 0 then
      l.log.total = l.log.total - units
      if l.kind > fixed then
        settle_period(l.log, c.up[k], -units)
      else
        local i, near = find(l, c.place)
        if i then
          local first, last, taken, aged = entry(l, i)
          if taken - units > l.cap * 0.5e-9 then
            local before = round(c.before)
            if i > 1 then
              local _, till = entry(l, i - 1)
              before = max(before, till)
            end
            change(l, i, first, min(last, max(first, before)), taken - units, aged)
          else
            remove(l, i)
          end
          if math.abs(c.place - l.log.begin) < near then l.log.skip = unsure end
        end
      end
    end
    look(l, dial)
  end

  -- booked returns the units that are booked for later.
  function kinds.booked(l)
    local units = 0
    for i = l.log.count, 1, -1 do
      local first, last, taken = entry(l, i)
      if first <= last then
        if first <= dial + tiny then break end
        units = units + taken
      end
    end
    return units
  end

  -- drip brings the log, where it holds less, to what units that were filled evenly over the window
  -- that ends at the dial time until would have left.
  function kinds.drip(l, units, till)
    local t, made, have = all(l), {}, 0 -- made begins with the latest
    local k, step = #t - 3, part(l)
    for j = -1, 63 do -- first those that end after all that follows
      local at, since = round(till - j * step), k
      while k > 0 and t[k + 1] - t[k + 3] > at - step + tiny do
        have, k = have + t[k + 2], k - 4
      end
      local more = units * (j + 1) / 64 - have
      if more > l.cap * 0.5e-9 then
        made[#made + 1], made[#made + 2], made[#made + 3], made[#made + 4] = 0, more, at, endless
        have = have + more
      end
      for i = since, k + 4, -4 do
        made[#made + 1], made[#made + 2], made[#made + 3], made[#made + 4] = t[i + 3], t[i + 2], t[i + 1], t[i]
      end
    end
    local kept = {}
    for i = 1, k + 3 do kept[i] = t[i] end
    for i = #made, 1, -1 do kept[#kept + 1] = made[i] end
    rebuild(l, kept)
    l.log.skip = unsure
  end

  -- next returns the first booked place that the dial has not passed, or that it is at; infinite if
  -- there is none; nil if no log of a window knows of all bookings.
  function kinds.next()
    for j = 1, n do
      local l = limits[j]
      if l.kind and l.kind <= fixed and l.log.beside < dial - tiny then
        local place = endless
        for i = l.log.count, 1, -1 do
          local first, last = entry(l, i)
          if first <= last then
            if last < dial - tiny then break end
            place = max(first, dial)
          end
        end
        return place
      end
    end
  end

  -- passed notes that the dial may have passed booked places in a hold. Their calls can go when it ends.
  function kinds.passed()
    for j = 1, n do
      local l = limits[j]
      if l.kind and l.kind <= fixed then l.log.beside = max(l.log.beside, round(dial)) end
    end
  end

  -- age lets a hold in which the dial stands for so long age what was filled before. The dial has gone
  -- on as far as it does in the hold.
  function kinds.age(stands)
    if stands < tiny then return end
    local gone = dial - lag
    for j = 1, n do
      local l = limits[j]
      if l.kind and l.kind <= fixed then
        local t, aged = all(l), false
        for k = 1, #t, 4 do
          if t[k + 1] >= gone - tiny then break end
          t[k + 3], aged = round(min(t[k + 3] + stands, most)), true
        end
        if aged then rebuild(l, t) end
      end
    end
  end

  -- reopen takes out the bookings and the markers of a log. Bucket time then goes back by the rest of a
  -- hold: nothing that has gone counts as later.
  local function reopen(l, held)
    local at = dial - held
    if l.kind > fixed then
      local g = l.log
      if now + g.off < g.till * 1e6 - slack then g.coming = 0 end
      if g.unknown ~= 0 then g.this, g.unknown = 0, 0 end
      return
    end
    void(l, dial, true)
    local g, t = l.log, all(l)
    for k = 1, #t, 4 do
      local counts = min(t[k + 1] - t[k + 3], at)
      t[k], t[k + 1] = min(t[k], at), min(t[k + 1], at)
      t[k + 3] = max(0, round(t[k + 1] - counts))
    end
    if #t > 0 then rebuild(l, t) end
    g.skip, g.beside = unsure, at
  end

  -- resume reopens all logs of the key: bucket time goes back for all workers.
  function kinds.resume(held)
    local fields, mine = redis.call('HGETALL', key), {}
    for i = 1, n do
      local l = limits[i]
      mine[l.field] = true
      if l.taken then mine[l.taken] = true end
      if l.kind then reopen(l, held) end
      if l.parked then reopen(l.parked, held) end
    end
    for i = 1, #fields, 2 do
      local field, was, o = fields[i], fields[i + 1], nil
      local of = not mine[field] and #was >= 136 and string.match(field, '^k%d+:(.*)$')
      if of then
        local size = unpacked('d', was, 49) > fixed and 136 or 184
        o = read({field = 'l' .. of}, string.sub(was, 1, size))
        if o then o.log.blob = string.sub(was, size + 1) end
      elseif not mine[field] and string.sub(field, 1, 1) == 'l' and #was > 48 then
        o = read({field = field}, was)
      end
      if o then
        reopen(o, held)
        if of then
          local blob = closed(o)
          redis.call('HSET', key, field, kinds.record(o) .. blob)
        else
          redis.call('HSET', key, unpack(kinds.keep({o}, {field, kinds.record(o)})))
        end
      end
    end
  end

  kinds.void, kinds.look, kinds.read = void, look, read

  -- change makes a limit of the one that was in force instead; nil: there was none. unknown is the
  -- most that the booked may take of a new one.
  function kinds.change(l, o, unknown, turned)
    booked = dial + last
    if o and o.kind and turned then turn(o) end
    if not l.kind then
      l.level, l.ret, l.top = o.level, 0, o.level > l.cap and o.cap > l.cap and o.cap or 0
      return
    end
    local level = 0
    if o then
      level = o.level
    elseif last > 0 then
      level = min(unknown, l.cap)
    end
    if o and o.kind and place_of(o) == place_of(l) then
      l.log, level = o.log, nil
    elseif not unpark(l, o) then
      brim(l)
    end
    if o and l.kind == fixed and (o.window or 0) ~= l.window then l.log.skip = unsure end -- nobody knows when the API begins the first of the new length
    convert(l, level, dial + max(0, last), dial)
    look(l, dial)
  end

  -- holds reports whether there is something in a limit at a bucket time, for the longest window of its workers.
  function kinds.holds(field, was, at)
    local l = read({field = field}, was)
    if not l then return true end
    local g = l.log
    if l.kind <= fixed then return g.count > 0 and g.last - g.aged + g.longest > at + tiny end
    look(l, at)
    return l.ret > tiny
  end

  -- prune drops the logs of limits that the key does not have any more, or that are leaky now.
  function kinds.prune(all, used)
    local was = {}
    for i = 1, #all, 2 do was[all[i]] = all[i + 1] end
    for field in pairs(was) do
      if string.sub(field, 1, 1) == 'g' then
        local of = 'l' .. string.sub(field, 2)
        local l = used[of]
        if l and (l.kind or endless) > fixed or not l and not (was[of] and #was[of] > 48) then redis.call('HDEL', key, field) end
      elseif string.sub(field, 1, 1) == 'k' then
        redis.call('HDEL', key, field)
      end
    end
  end
end

kinds.look_all = look_all
if letter ~= 'B' then cold() end
