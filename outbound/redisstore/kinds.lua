-- Windows and calendars: the limits with a kind. This stands in bucket.lua, where kinds is
-- nil in runs that meet leaky limits only.
--
-- A limit with a kind has a log. That of a window are entries: the first place and the last,
-- as bucket times, and the units. The first is infinite in a marker, which stands for no calls.
-- The newest entry and the oldest are at hand. A run that has room reads and writes no others.
--
--   l<limit> level, ret, the bucket time of both, rate, top, capacity, kind, window; here ret and top
--            are in how long the last of the units and the first of them go, of bucket time, or of
--            real time for a calendar. Of a window: the longest window of its workers, skip, total,
--            the number of entries, the sum of their units, the oldest entry, and the newest. Of a
--            calendar: total, begin, end, the next end, the units of this period and of the next,
--            1 if nobody knows what calls have taken, and by how much the Unix time is ahead
--   g<limit> the entries but for the newest. While a worker takes the limit for a leaky one: what
--            l<limit> was, and these entries
--
-- An interpreter of tests, gopher-lua, assigns wrong values where a call stands first in an
-- assignment to several locals. So those are assigned one by one.

kinds = {}
local moving, fixed, endless, entries, slack = 1, 2, 1 / 0, 128, 1e6
local tiny = 0.0005 -- half a nanosecond: sums of fractions are not exact
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
      -- The periods are this one and the next by the worker's estimate.
      local from, till, next, after = unpacked('dddd', head, at_byte)
      at_byte = at_byte + 32
      if from > -9e9 and from < till and till < next and next < after and after < 9e9 then
        if unix >= till * 1e6 + slack then from, till, next = till, next, after end
        if unix >= from * 1e6 + slack and unix < till * 1e6 + slack then l.period = {from, till, next} end
      end
      -- A request that was carried out before has its answer, whatever the time is now.
      if not l.period and not (r and #r >= 24 and unpacked('d', r) == seq) then
        return {'untimely', pack('dd', unix, set and stamp or -version)}
      end
    end
  end
end

local function round(x) return floor(x * 1e3 + 0.5) / 1e3 end

local all, rebuild, convert, under, turn -- of cold
local cold

local function fits(l, sum) return sum <= l.cap * (1 + 0.5e-9) end

local function new(l)
  l.log = {field = 'g' .. string.sub(l.field, 2), longest = 0, window = l.window or 0, skip = 0, total = 0, count = 0, sum = 0, oldest = {0, 0, 0}, first = 0, last = 0, units = 0,
    from = 0, till = 0, next = 0, this = 0, coming = 0, unknown = 0, off = 0}
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
    g.longest, g.count, g.sum, g.first, g.last, g.units = l.window, 1, l.cap, endless, dial, l.cap
  end
end

-- sound reports whether an entry is no more than the log that it is in. One of a fixed limit may go on
-- behind the newest.
local function sound(g, kind, first, last, units)
  local latest = kind == moving and g.last or g.last + 2 * max(g.longest, g.window)
  return units >= 0 and units <= g.sum * (1 + 1e-6) + 1e-6 and last >= -most and last <= latest and first >= -most and (first <= last or first == endless)
end

-- closed returns the entries but for the newest, as they are kept.
local function closed(l)
  local g = l.log
  if not g.blob then
    g.blob = g.count > 1 and redis.call('HMGET', key, g.field)[1] or ''
    if #g.blob ~= 24 * max(0, g.count - 1) then brim(l) end
  end
  return l.log.blob
end

local function entry(l, i)
  local g = l.log
  if i < g.count then
    if i == 1 then
      local o = g.oldest
      return o[1], o[2], o[3]
    end
    local blob = closed(l)
    g = l.log
    if i < g.count then
      local first, last, units = unpacked('ddd', blob, 24 * i - 23)
      if sound(g, l.kind, first, last, units) then return first, last, units end
      brim(l)
      g = l.log
    end
  end
  return g.first, g.last, g.units
end

-- add appends an entry, which is the last, or counts for as long as the last does.
local function add(l, first, last, units)
  local blob = closed(l)
  local g = l.log
  if g.count > 0 then
    last = max(last, g.last)
    first = max(first, min(g.first, g.last))
    if g.count == 1 then g.oldest = {g.first, g.last, g.units} end
    g.blob, g.dirty = blob .. pack('ddd', g.first, g.last, g.units), true
  else
    g.sum = 0
  end
  g.count, g.sum, g.first, g.last, g.units = g.count + 1, g.sum + units, first, last, units
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
  if l.kind == moving and g.last + g.longest <= from + tiny then gone = g.count end -- the newest ends last
  while gone < g.count do
    local _, last, units = entry(l, gone + 1)
    if last + g.longest > from + tiny then break end
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
  g.blob, g.count, g.sum, g.dirty = string.sub(blob, 24 * gone + 1), g.count - gone, max(0, sum), true
  if g.count > 1 then
    g.oldest = {unpacked('ddd', g.blob)}
  else
    g.sum = g.units
  end
end

local function real(w) return max(0, rem) + (speed < 1 and real_of(speed, w) or w) end

local function part(l) return floor(floor(l.window * 1e3 + 0.5) / 64) / 1e3 end

-- ends returns the dial time from which an entry counts no more.
local function ends(l, first, last)
  if l.kind == moving then return last + l.window end
  return (first > last and last + 0.001 or first) + l.window
end

-- joins reports whether a call at a place is in the window that began with the newest entry of a
-- fixed limit, and returns how far bucket time is behind real time where the API's window begins.
local function joins(l, place, behind)
  local g = l.log
  local d, marks = behind - g.skip, g.first > g.last
  local sure = not marks and d <= 1000 + tiny and d >= -1000 - tiny
  local over = ends(l, g.first, g.last)
  if sure and place < over - 20000 - tiny then return true, behind end
  if sure and place < over - tiny then return false, unsure end -- the API's window may have ended
  if sure or place >= g.last + l.window - tiny then return false, behind end
  g.skip = unsure
  if marks or place > g.first + part(l) + tiny then return false, unsure end
  g.first = max(g.first, place)
  return true, unsure
end

-- fill takes units at bucket time w from now. Before it, the log forgets what ended before now, or
-- before the hold in force began.
local function fill(l, units, w)
  local place, behind = round(dial + w), skip + real(w) - w
  l.log.total = l.log.total + units
  forget(l, dial - max(0, rem))
  local g = l.log
  if g.count > 0 then
    local joined = g.first <= g.last and place <= max(g.last, g.first + part(l)) + tiny
    if l.kind == fixed then
      local joining, since = joins(l, place, behind)
      joined, behind = joining, since
    end
    if joined then
      g.last, g.units, g.sum = max(g.last, place), g.units + units, g.sum + units
      return
    end
  end
  g.skip = behind
  add(l, place, place, units)
end

-- look writes what the log comes to at a dial time as the limit's level.
local function look(l, at)
  local g = l.log
  if l.kind > fixed then
    local left = max(0, g.till * 1e6 + slack - now - g.off)
    if g.till == 0 then left = 2.7648e12 end -- of which period the units are is known with the next step
    l.level, l.top, l.ret = g.this, 0, 0
    if g.this > 0 then l.top, l.ret = left, left end
    if g.coming > 0 then l.ret = max(0, g.next * 1e6 + slack - now - g.off) end
    return
  end
  local sum, next = g.sum, 0
  for i = 1, g.count do
    local first, last, units = entry(l, i)
    next = ends(l, first, last) - at
    if next >= tiny then break end
    sum = sum - units
  end
  if next >= tiny then
    l.level, l.top, l.ret = max(0, sum), round(next), round(ends(l, l.log.first, l.log.last) - at)
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
  local level, ret, shown, rate, top, cap, kind, window = unpacked('dddddddd', was)
  local g = new(l)
  if not (level >= 0 and level < 1e18 and ret >= 0 and ret < 1e18 and top >= 0 and top < 1e18 and shown > -1e17 and shown < 1e17
    and cap > 0 and cap <= 1e12 and rate >= 0 and rate < 1e13) then
    return nil
  end
  if #was == 152 and (kind == moving or kind == fixed) then
    g.longest, g.skip, g.total, g.count, g.sum = unpacked('ddddd', was, 65)
    g.window = max(g.window, window)
    local o = {unpacked('ddd', was, 105)}
    g.oldest = o
    g.first, g.last, g.units = unpacked('ddd', was, 129)
    if not (window > 0 and window < most and g.longest >= 0 and g.longest < most and g.count >= 0 and g.count <= entries and g.count % 1 == 0
      and g.sum >= 0 and g.sum < 1e17 and g.last <= most and g.units <= 1e15 and (g.count < 1 or sound(g, kind, g.first, g.last, g.units))
      and (g.count < 2 or sound(g, kind, o[1], o[2], o[3]))) then
      return nil
    end
  elseif #was == 128 and (kind == 3 or kind == 4 or kind == 5) then
    g.total, g.from, g.till, g.next, g.this, g.coming, g.unknown, g.off = unpacked('dddddddd', was, 65)
    if not (g.this >= 0 and g.this < 1e15 and g.coming >= 0 and g.coming < 1e15 and g.off > -1e17 and g.off < 1e17
      and (g.till == 0 or g.from > -9e9 and g.from < g.till and g.till < g.next and g.next < 9e9)) then
      return nil
    end
  else
    return nil
  end
  if not (g.total > -1e25 and g.total < 1e25) then return nil end
  return {field = l.field, level = level, ret = ret, top = top, shown = shown, rate = rate, cap = cap, kind = kind, window = window, log = g}
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
  local level, before
  if #was <= 48 then
    if #was ~= 32 and #was ~= 40 and #was ~= 48 then return false end
    cold()
    local _, shown, rate
    level, _, shown, rate = unpacked('dddd', was)
    if not (rate > 0 and level >= 0 and level <= 1e15 + 9.3e9 * rate and shown > -1e17 and shown < 1e17) or not under(l) then return false end
    level = max(0, level - rate * (dial_before - shown) / 1e6)
    before = 0
  else
    local o = read(l, was)
    if not o then return false end
    level, before = o.level, o.kind
    if not l.kind then -- it leaks from now on, and its log stays as it is
      l.under = was .. closed(o)
      l.level, l.top = max(0, level - l.rate * (dial - dial_before) / 1e6), level > l.cap and o.cap > l.cap and o.cap or 0
      if differ then l.ret = 1e-9 * max(level, l.cap) end
      return true
    end
  end
  if before ~= l.kind or differ then
    cold()
    convert(l, level, before, dial_before + max(0, last_before))
    if differ then turn(l) end
  end
  return true
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
        if g.till > p[1] then -- the zone is another one, or the clock was set back
          g.this = g.this + g.coming
        elseif g.till == p[1] or g.next > p[1] then
          g.this, g.unknown = g.coming, 0
        elseif g.till ~= 0 then -- else it has units, but of no period yet
          g.this, g.unknown = 0, 0
        end
        g.coming = 0
      end
      g.from, g.till, g.next = p[1], p[2], p[3]
    end
  end
  look_all()
end

-- wait returns the first bucket time from now, not before w, at which units have room.
function kinds.wait(l, units, w)
  if l.kind > fixed then return w end
  local sum = l.log.sum + units
  for i = 1, l.log.count do
    if fits(l, sum) then break end
    local first, last, taken = entry(l, i)
    local over = ends(l, first, last) - dial
    w = max(w, round(over))
    sum = sum - taken
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

-- calendars is wait for all calendars: each may ask for a later place than the others.
function kinds.calendars(u, w, slowest)
  local books, again = true, true
  for _ = 1, 4 * n do
    if not again or not books then break end
    again = false
    for i = 1, n do
      local l = limits[i]
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
  g.total = g.total + units
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
-- window; else 0.
function kinds.kept(l)
  local g = l.log
  return g.count > 0 and g.longest > l.window and g.last + g.longest - dial or 0
end

-- record returns what is kept of a limit.
function kinds.record(l)
  local g = l.log
  if l.kind > fixed then
    return pack('dddddddddddddddd', l.level, l.ret, dial, l.rate, l.top, l.cap, l.kind, 0,
      g.total, g.from, g.till, g.next, g.this, g.coming, g.unknown, g.off)
  end
  local o = g.oldest
  return pack('ddddddddddddddddddd', l.level, l.ret, dial, l.rate, l.top, l.cap, l.kind, l.window,
    g.longest, g.skip, g.total, g.count, g.sum, o[1], o[2], o[3], g.first, g.last, g.units)
end

-- keep adds the closed entries of limits to what is written, if they have changed.
function kinds.keep(list, values)
  for _, l in pairs(list) do
    if l.kind and l.log.dirty then
      if l.log.blob == '' then
        redis.call('HDEL', key, l.log.field)
      else
        values[#values + 1], values[#values + 2] = l.log.field, l.log.blob
      end
    elseif l.under then
      values[#values + 1], values[#values + 2] = 'g' .. string.sub(l.field, 2), l.under
    end
  end
  return values
end

-- cold creates the functions that a run which only books seldom needs.
cold = function()
  if all then return end

  -- all returns the numbers of all entries.
  all = function(l, kind)
    kind = kind or l.kind
    local blob = closed(l)
    local numbers = #blob / 8
    local t = {unpacked(string.rep('d', numbers), blob, 1)}
    local g = l.log
    t[numbers + 1] = nil
    for k = 1, numbers, 3 do
      if not sound(g, kind, t[k], t[k + 1], t[k + 2]) or kind == moving and k > 1 and t[k + 1] < t[k - 2] then
        brim(l)
        g, t, numbers = l.log, {}, 0
        break
      end
    end
    if g.count > 0 then t[numbers + 1], t[numbers + 2], t[numbers + 3] = g.first, g.last, g.units end
    return t
  end

  -- merge makes one entry of the two neighbours that are nearest to each other.
  local function merge(l, t)
    local at, least = 1, endless
    for k = 1, #t - 5, 3 do
      local first = t[k] > t[k + 1] and t[k + 1] + 0.001 or t[k]
      local span = t[k + 4] - first
      if span < least - tiny then at, least = k, span end
    end
    local first = min(t[at], t[at + 1])
    if l.kind == fixed then first = max(first, min(t[at + 3], t[at + 4])) end
    t[at], t[at + 1], t[at + 2] = first, max(t[at + 1], t[at + 4]), t[at + 2] + t[at + 5]
    for k = at + 3, #t do t[k] = t[k + 3] end
  end

  -- rebuild makes these entries the log.
  rebuild = function(l, t)
    local g = l.log
    while #t > 3 * entries do merge(l, t) end
    local k, sum = #t - 3, 0
    for i = 3, #t, 3 do sum = sum + t[i] end
    g.count, g.sum, g.blob, g.dirty = #t / 3, sum, '', true
    if k >= 0 then g.first, g.last, g.units = t[k + 1], t[k + 2], t[k + 3] end
    if k > 0 then
      g.oldest = {t[1], t[2], t[3]}
      g.blob = pack(string.rep('d', k), unpack(t, 1, k))
    end
  end

  -- put changes an entry.
  local function put(l, i, first, last, units)
    local g = l.log
    local _, _, was = entry(l, i)
    if i == g.count then
      g.first, g.last, g.units = first, last, units
    else
      local blob = closed(l)
      if g ~= l.log then return end -- it was garbage
      if i == 1 then g.oldest = {first, last, units} end
      g.blob = string.sub(blob, 1, 24 * i - 24) .. pack('ddd', first, last, units) .. string.sub(blob, 24 * i + 1)
      g.dirty = true
    end
    g.sum = g.count == 1 and units or max(0, g.sum + units - was)
  end

  local function remove(l, i)
    local g, blob = l.log, closed(l)
    local _, _, units = entry(l, i)
    local first, last, before = 0, 0, 0
    if i > 1 then first, last, before = entry(l, i - 1) end
    if g ~= l.log then return end -- it was garbage
    g.dirty = true
    if i == g.count then
      g.first, g.last, g.units = first, last, before
      blob = string.sub(blob, 1, 24 * max(0, i - 2))
    else
      blob = string.sub(blob, 1, 24 * i - 24) .. string.sub(blob, 24 * i + 1)
    end
    g.blob, g.count, g.sum = blob, g.count - 1, max(0, g.sum - units)
    if g.count > 1 then g.oldest = {unpacked('ddd', blob)} end
    if g.count < 2 then g.sum = g.count * g.units end
  end

  -- find returns the index of the entry that has the units of a call at a place.
  local function find(l, place)
    local near = 0.0006 + 4e-16 * math.abs(place)
    for i = l.log.count, 1, -1 do
      local first, last = entry(l, i)
      if first <= last then -- a fixed limit's marker may end after an entry that goes on behind it
        if last < place - near then return nil end
        if first <= place + near then return i, near end
      end
    end
  end

  -- raise brings what the log holds up to a level, with an entry at a place.
  local function raise(l, level, place)
    local more = level - l.log.sum
    if more > l.cap * 0.5e-9 then add(l, round(place), round(place), more) end
  end

  -- void takes out what is booked for later than the dial time until, and with markers those, too.
  local function void(l, till, markers)
    local t, kept = all(l), {}
    for k = 1, #t, 3 do
      local marks = t[k] > t[k + 1]
      if marks or t[k] <= till + tiny then
        kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = t[k], t[k + 1], t[k + 2]
      end
    end
    local k = #kept - 2
    if k > 0 and kept[k] <= kept[k + 1] then kept[k + 1] = min(kept[k + 1], max(kept[k], till)) end
    if markers then
      t, kept = kept, {}
      for i = 1, #t, 3 do
        if t[i] <= t[i + 1] then kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = t[i], t[i + 1], t[i + 2] end
      end
    end
    if #kept < 3 * l.log.count or k > 0 and kept[k + 1] ~= l.log.last then rebuild(l, kept) end
  end

  -- convert brings a log to a limit's kind. level is what was in it; was is its kind before, 0: it
  -- was a leaky limit; nil: the limit is new.
  convert = function(l, level, was, place)
    local g = l.log
    if l.kind > fixed then
      if was ~= l.kind then g.this = max(g.this, level) end
      g.dirty = g.dirty or g.count > 1
      g.count, g.sum, g.blob, g.longest, g.skip = 0, 0, '', 0, 0
    elseif not was or was == 0 or was > fixed then
      raise(l, level, place)
      g = l.log
      g.from, g.till, g.next, g.this, g.coming, g.unknown, g.off = 0, 0, 0, 0, 0, 0, 0
    elseif was == moving and l.kind == fixed then
      local t = all(l)
      for k = 1, #t, 3 do t[k] = max(t[k], t[k + 1]) end
      rebuild(l, t)
      l.log.skip = unsure
    elseif was == fixed and l.kind == moving then -- one may go on behind the next
      local t, sorted = all(l, was), true
      for k = 4, #t, 3 do sorted = sorted and t[k + 1] >= t[k - 2] end
      if not sorted then
        for i = 4, #t, 3 do
          local first, last, units, k = t[i], t[i + 1], t[i + 2], i - 3
          while k > 0 and t[k + 1] > last do
            t[k + 3], t[k + 4], t[k + 5], k = t[k], t[k + 1], t[k + 2], k - 3
          end
          t[k + 3], t[k + 4], t[k + 5] = first, last, units
        end
        rebuild(l, t)
      end
    end
  end

  -- under reads the log that a limit had before a worker took it for a leaky one.
  under = function(l, was)
    was = was or redis.call('HMGET', key, 'g' .. string.sub(l.field, 2))[1]
    if not was then return new(l) end
    local size = #was >= 56 and unpacked('d', was, 49) > fixed and 128 or 152
    if #was < size or not read(l, string.sub(was, 1, size)) then return nil end
    local g = l.log
    g.blob, g.dirty = string.sub(was, size + 1), true
    return #g.blob == 24 * max(0, g.count - 1) and g or nil
  end

  -- turn makes the total differ from what any charge expects: Unbook takes none of those for the
  -- last booking.
  turn = function(l) l.log.total = l.log.total + 1e-9 * l.cap end

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

  -- settle makes the units of a call into used. lost says that the limit knows nothing of the call.
  function kinds.settle(l, place, of, units, used, lost)
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
        local first, last, taken = entry(l, i)
        if used == 0 and l.kind == fixed and math.abs(place - first) < near then
          first, l.log.skip = last, unsure
        end
        taken = max(0, taken + used - units)
        if taken > l.cap * 0.5e-9 then
          put(l, i, first, last, taken)
        else
          remove(l, i)
        end
      elseif used > units and place + l.window > dial + tiny then
        add(l, place, place, used - units)
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
        local i = find(l, c.place)
        if i then
          local first, last, taken = entry(l, i)
          if taken - units > l.cap * 0.5e-9 then
            put(l, i, first, min(last, max(first, round(c.before))), taken - units)
          else
            remove(l, i)
            l.log.skip = unsure
          end
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
    local k, step = #t - 2, part(l)
    for j = -1, 63 do -- first those that end after all that follows
      local at, from = round(till - j * step), k
      while k > 0 and ends(l, t[k], t[k + 1]) - l.window > at - step + tiny do
        have, k = have + t[k + 2], k - 3
      end
      local more = units * (j + 1) / 64 - have
      if more > l.cap * 0.5e-9 then
        made[#made + 1], made[#made + 2], made[#made + 3] = more, at, endless
        have = have + more
      end
      for i = from, k + 3, -3 do
        made[#made + 1], made[#made + 2], made[#made + 3] = t[i + 2], t[i + 1], t[i]
      end
    end
    local kept = {}
    for i = 1, k + 2 do kept[i] = t[i] end
    for i = #made, 1, -1 do kept[#kept + 1] = made[i] end
    rebuild(l, kept)
  end

  -- resume takes out the bookings and the markers. Bucket time is at, then: nothing that has gone counts
  -- as later.
  function kinds.resume(l, at)
    void(l, dial, true)
    local g, t = l.log, all(l)
    if g.count > 0 and g.last > at then
      for i = 1, #t do
        if i % 3 > 0 then t[i] = min(t[i], at) end
      end
      rebuild(l, t)
    end
    g.skip = unsure
    if g.unknown ~= 0 then g.this, g.unknown = 0, 0 end
  end

  kinds.void, kinds.look, kinds.read = void, look, read

  -- change makes a limit of the one that was in force instead; nil: there was none. unknown is the
  -- most that the booked may take of a new one.
  function kinds.change(l, o, unknown, turned)
    if o and o.kind then
      if turned then turn(o) end
      l.log = o.log
    elseif l.kind then
      if not (o and under(l, o.under)) then new(l) end
    end
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
    convert(l, level, o and (o.kind or 0), dial + max(0, last))
    look(l, dial)
  end

  -- prune drops the logs of limits that the key does not have any more, or that are leaky now.
  function kinds.prune(all, used)
    local was = {}
    for i = 1, #all, 2 do was[all[i]] = all[i + 1] end
    for field in pairs(was) do
      if string.sub(field, 1, 1) == 'g' then
        local of = 'l' .. string.sub(field, 2)
        local l = used[of]
        if l and not l.kind or not l and not (was[of] and #was[of] > 48) then redis.call('HDEL', key, field) end
      end
    end
  end
end

kinds.look_all = look_all
if letter ~= 'B' then cold() end
