-- One step of a bucket, as Op.Apply of package leak computes it. Times are
-- microseconds, with the nanoseconds as decimals; rates are units per second.
--
-- KEYS[1] is a hash:
--   s        at, born, last, when the key expires, print of the limits last used[, lead];
--            the print is negative once a call has succeeded, if there is no c
--   c        skip, rem, speed, epoch, fails, why held; absent while all are as in a new key
--   r        the row of the latest refusals: calls, refusals and trust in one number, top, per, fast,
--            until; absent if there is none
--   l<limit> level, ret, the bucket time (dial) of both, rate, top[, capacity]; the capacity is
--            there once limits were set without this one; top is the capacity, or the larger
--            one from before it was lowered. Where the limit has a kind, as a window or a calendar
--            has: kinds.lua
--   g<limit> the log of such a limit, but for its newest entry: kinds.lua
--   k<log>:<limit>
--            another log of such a limit: kinds.lua
--   v        stamp of the limits[, the limits that were set, as the workers write them];
--            the last 20 bits of a stamp are the version, and the others the time, so that
--            it names these limits even if the key is lost and a worker sets others
--   w<id>    a worker's record: seq of its last request that changed anything; the seq since
--            which the record is unbroken, and how many calls the request booked, in one
--            number; the place of the first call, and, if there is one, of the booking before; for each
--            limit, how full it is there, with all that had come back, and by how much the joint rule raised it; and, for
--            several calls, how full each limit is there without what had come back.
--            For a meter the number of calls is -1 - the limits brought to the brim, as bits. Last,
--            for several calls where a limit has a kind, runs of calls: how many, their place, and
--            of each calendar the period that they are of
--
-- Numbers are packed doubles: they lose nothing, and there are few bytes to read.
--
-- ARGV: worker; numbers: seq, the last one that the worker knows to be on record, 1 if the
-- worker does not know what became of its request before, the stamp of the limits by which
-- the request counts if they were set, or 0, or minus the stamp of limits that the worker
-- cannot read, print, how many limits, and of each its unit, capacity and rate, and, if one has a
-- kind, of each its kind and window, which for a calendar is a number for its zone, and of each calendar four times; the limits' fields; then steps, each a letter and numbers:
--   V        undo the last booking, to book again: its charge
--   N        there was a booking to undo, which may not be undone: book nothing
--   S        settle: a charge, and what the call has cost of each limit
--   R, H, A  the API refused, asks for a hold, or told what remains: epoch, wait, longest hold,
--            reason, 0, or 1 and a charge; with A what remains of each limit, or less than 0
--   G        a call has succeeded: epoch
--   U        give back: a charge
--   M        meter: what to fill of each limit
--   E        resume
--   L        set limits: print, how many, and of each its unit, capacity and rate, and, if one has
--            a kind, of each its kind and window; then, as arguments of their own, the limits as they are kept and their fields
--   B        book: longest wait, horizon, claim, how many runs, of each run a count and the
--            cost of each limit, and the shortest wait if there is one; always the last
--
-- Each run creates the functions that it comes to, and most runs only book. So the code that books
-- stands inline, and other steps create functions where they need them.

local lag, memory, year100, most = 1e5, 1e7, 3.15576e15, 4611686018427387
local growth = 0.001588502996738749 -- ln 1.1 per minute
local key, worker, head = KEYS[1], ARGV[1], ARGV[2]
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local struct = rawget(_G, 'struct')
local pack, unpacked
if struct then
  pack, unpacked = struct.pack, struct.unpack
else -- the same for formats of nothing but d, where there is no such library
  local byte, char = string.byte, string.char
  pack = function(_, ...)
    local parts = {}
    for i, x in ipairs({...}) do
      local sign, mantissa, exponent = 0, 0, 0
      if x < 0 then sign, x = 128, -x end
      if x ~= x then
        exponent, mantissa = 2047, 2 ^ 51
      elseif x == 1 / 0 then
        exponent = 2047
      elseif x > 0 then
        mantissa, exponent = math.frexp(x)
        mantissa, exponent = (mantissa * 2 - 1) * 2 ^ 52, exponent + 1022
        if exponent < 1 then mantissa, exponent = 0, 0 end
      end
      local low = mantissa % 2 ^ 24
      local high = (mantissa - low) / 2 ^ 24
      parts[i] = char(low % 256, floor(low / 256) % 256, floor(low / 65536), high % 256, floor(high / 256) % 256,
        floor(high / 65536) % 256, exponent % 16 * 16 + floor(high / 2 ^ 24), sign + floor(exponent / 16))
    end
    return table.concat(parts)
  end
  unpacked = function(format, s, at)
    local out = {}
    at = at or 1
    for i = 1, #format do
      local b1, b2, b3, b4, b5, b6, b7, b8 = byte(s, at, at + 7)
      local mantissa = b1 + b2 * 256 + b3 * 65536 + (b4 + b5 * 256 + b6 * 65536 + b7 % 16 * 2 ^ 24) * 2 ^ 24
      local exponent = b8 % 128 * 16 + floor(b7 / 16)
      local x = math.ldexp(1 + mantissa / 2 ^ 52, exponent - 1023)
      if exponent == 0 then x = 0 end
      if exponent == 2047 then x = mantissa == 0 and 1 / 0 or 0 / 0 end
      out[i] = b8 >= 128 and -x or x
      at = at + 8
    end
    return unpack(out)
  end
end

-- The limits.

local seq, heard, fence, known, mine, n, unit, cap, rate = unpacked('ddddddddd', head)
local field = ARGV[3]
local limits = {{field = field, unit = unit, cap = cap, rate = rate, level = 0, ret = 0, top = 0, full = 0, up = 0}}
local fields = {'s', 'c', 'v', worker, field}
for i = 2, n do
  unit, cap, rate = unpacked('ddd', head, 24 * i + 25)
  field = ARGV[2 + i]
  limits[i] = {field = field, unit = unit, cap = cap, rate = rate, level = 0, ret = 0, top = 0, full = 0, up = 0}
  fields[4 + i] = field
end
local arg = 3 + n -- the next step
local got = redis.pcall('HMGET', key, unpack(fields))

local stamp, set, kept, garbage = 0, false, nil, false
if got.err then -- a key that is no hash is garbage; the worker gets any other error, such as NOPERM
  if not string.find(got.err, 'WRONGTYPE', 1, true) then return got end
  got, garbage = {}, true
end
if got[3] then
  local blob
  stamp, blob = string.match(got[3], '^(%d+) (.*)$')
  stamp, blob = tonumber(stamp or string.match(got[3], '^%d+$')), blob or ''
  if stamp and stamp > 0 and stamp < 9007199254740992 and stamp ~= -known then
    set = blob ~= ''
    kept = set and got[3] or nil
  else
    stamp, garbage = 0, true
  end
end
known = max(known, 0)
local stale
if (set and stamp or 0) ~= known then
  -- Other limits are in force than the worker counts by. If the request repeats one that was
  -- carried out before they were set, the script answers it once more, by the old limits. Their
  -- version is known if they were set.
  stale = {'stale', not garbage and got[3] or ''}
  if not (got[4] and #got[4] >= 24 and unpacked('d', got[4]) == seq) then
    -- Write, so that a server that cannot write does not pass for one that is well.
    if fence == 1 and got[3] and not garbage then redis.call('HSET', key, 'v', got[3]) end
    return stale
  end
  stamp, set = known, known > 0
end

local version = stamp % 1048576

-- The clock.

local t = redis.call('TIME')
local now = t[1] * 1e6 + t[2]
local at, born, last, expires, print, lead = now, now, -lag, 0, nil, 0
local skip, rem, speed, epoch, fails, held = 0, -memory, 1, now, -2, 0
local row, rowed
local s, c, r = got[1], got[2], got[4]
if s then
  if #s == 48 then
    at, born, last, expires, print, lead = unpacked('dddddd', s)
  elseif #s == 40 then
    at, born, last, expires, print = unpacked('ddddd', s)
  else
    garbage = true
  end
  epoch = born
  if print and print < 0 then print, fails = -print, -1 end
  garbage = garbage or not (at > now - year100 and at < now + year100 and born > now - year100 and born < now + year100
    and last >= -lag and last <= most and lead >= 0 and lead < 1e300 and expires < 1e17)
end
if c then
  garbage = garbage or not s or #c ~= 48
  if not garbage then
    skip, rem, speed, epoch, fails, held = unpacked('dddddd', c)
    garbage = not (rem >= -memory and rem <= most and speed >= 0.01 and speed <= 1 and epoch > -1e17 and epoch < 1e17
      and skip > -9e15 and skip < 9e15 and fails >= -2 and fails < 1e9 and held >= 0 and held < 256)
  end
  rowed = redis.call('HMGET', key, 'r')[1]
  if rowed then
    row = {}
    if #rowed == 40 then
      local counts
      counts, row.top, row.per, row.fast, row.till = unpacked('ddddd', rowed)
      row.trust = counts % 256 - 3
      counts = floor(counts / 256)
      row.refused, row.calls = counts % 4096, floor(counts / 4096)
    end
    if not (row.top and row.calls >= 0 and row.calls < 4294967296 and row.trust <= 128 and row.top >= 0.01 and row.top <= 1
      and row.per >= 0 and row.per < 4294967296 and row.fast >= 0 and row.fast <= 1 and row.till > -1e17 and row.till < 1e17) then
      garbage = true
    end
  end
end

-- Under a slowed clock dial_of returns how far bucket time advances in x, and the speed after it;
-- real_of returns how long an advance of y takes. Lua has no expm1 and no log1p: small arguments go
-- as series.
local step = ARGV[arg] or ''
local letter = string.sub(step, 1, 1)
local dial_of, real_of
if c or letter ~= 'B' then
  local exp, log = math.exp, math.log
  dial_of = function(v, x)
    if v >= 1 or x <= 0 then return x, min(v, 1) end
    local full, g = log(1 / v) / growth, growth * x / 1e6
    if x / 1e6 < full then
      local e = g < 1e-3 and g * (1 + g / 2 * (1 + g / 3 * (1 + g / 4 * (1 + g / 5)))) or exp(g) - 1
      return min(x, floor(v / growth * e * 1e9) / 1e3), v * exp(g)
    end
    return max(0, x - ceil((full - (1 - v) / growth) * 1e9) / 1e3), 1
  end
  real_of = function(v, y)
    if v >= 1 or y <= 0 then return y end
    if y / 1e6 >= (1 - v) / growth then
      return y + ceil((log(1 / v) / growth - (1 - v) / growth) * 1e9) / 1e3 + 0.001
    end
    local g = growth * y / 1e6 / v
    local e = g < 1e-3 and g * (1 - g * (1 / 2 - g * (1 / 3 - g * (1 / 4 - g * (1 / 5 - g / 6))))) or log(1 + g)
    return max(y, ceil(e / growth * 1e9) / 1e3) + 0.001
  end
end

local at_before, dial_before, last_before, skip_before, rem_before = at, at - born - skip, last, skip, rem
local latest_place = last > 0 and dial_before + last
-- A clock that steps back by at most a second may step forward again at once, and that time must
-- not count twice. So the script keeps the state as of the latest time, which is ahead of the clock
-- by so much.
local back, ahead, e = false, 0, now - at
if e <= 0 then
  skip = skip + e
  if e < -1e6 then back = true else ahead = -e end
else
  local x = rem > 0 and max(0, e - rem) or e
  rem = max(-memory, rem - e)
  at = now
  if speed < 1 then
    x, speed = dial_of(speed, x)
  end
  skip = skip + e - x
  last = last - x
  last = last > -lag and floor(last * 1e3 + 0.5) / 1e3 or -lag -- sums of fractions are not exact
end
at = now
local dial = at - born - skip
if row then
  row.till = min(row.till or 0, at + 3.6e9)
  if row.till <= at then row = nil end
end

-- The limits that have a kind: windows and calendars. A run that meets none has no more of them
-- than this.

local kinds -- functions
local spoilt = false -- a limit's log was no log, and is full to the brim now
local kinded = #head > 48 + 24 * n
for i = 1, n do
  local was = got[4 + i]
  kinded = kinded or was and #was > 48
end
if letter ~= 'B' then
  for i = arg, #ARGV do kinded = kinded or string.find(ARGV[i], '^[LE]') ~= nil end
end
if kinded then
  -- In a function of its own, because what its functions share is then looked for once, and not by
  -- each of them: that took the server longer than a decision.
  local function make()
--include kinds.lua
  end
  make()
end

-- The levels.

local differ = s and not set and print ~= mine
for i = 1, n do
  local l, was = limits[i], got[4 + i]
  if kinds and (l.kind or was and #was > 48) then
    if was and not s or not kinds.load(l, was, differ) then garbage = true end
  elseif was then
    local level, ret, shown, rate, top
    if #was == 32 then
      level, ret, shown, rate = unpacked('dddd', was)
    elseif #was == 40 or #was == 48 then
      level, ret, shown, rate, top = unpacked('ddddd', was)
    end
    if level and rate ~= l.rate and rate > 0 then
      -- The worker that wrote the level has another rate for this limit. The limit leaks by the lower rate of
      -- the two until the key was last written, and since then by this worker's. But until the last booking no new call can go, and so long
      -- the limit leaks at the rate of its bookings.
      local till = l.rate > rate and max(shown, dial_before) or shown
      if latest_place then till = max(till, latest_place) end
      local x = min((till - shown) / 1e6, level / rate)
      -- A Resume cancels the bookings and the rest of a hold, and then more may be in the limit: a
      -- top below 0 says so.
      if l.rate < rate and (last > 0 or rem > 0) then top = -max(l.cap, math.abs(top or 0)) end
      level = level + (l.rate - rate) * x
      ret = ret + (rate - l.rate) * till / 1e6
    end
    -- A sound level is at most as far ahead as a booking can be, and a thousand calls of the
    -- highest cost. A wrong level below that may shut a bucket for long: Resume opens it.
    if level and s and level >= 0 and level <= 1e15 + 9.3e9 * l.rate and ret > -1e25 and ret < 1e25 and shown > -1e17 and shown < 1e17 then
      l.ret, l.top = ret, top and (top < 0 and top > -1e15 or top > l.cap and top < 1e15) and top or 0
      if l.top < 0 and last <= 0 and rem <= 0 then l.top = 0 end
      local x = l.rate * (dial - shown) / 1e6
      if x >= 0 then
        l.level = max(0, level - x)
      else -- a Resume has set bucket time back since
        l.level = max(level, min(level - x, max(l.cap, math.abs(l.top))))
      end
      -- The last booking may not have charged this limit: it cannot be undone. The difference is more than
      -- what latest allows for rounding.
      if differ then l.ret = ret + 1e-9 * max(level, l.cap) + 4e-9 * l.rate end
    else
      garbage = true
    end
  end
end

if garbage then
  if stale then return stale end -- by the limits in force it will be full
  r = nil -- or nothing would be written, and what is not there is open
end
local untimely = kinds and kinds.untimely()
if untimely then return untimely end
if garbage then -- a new life, with every limit at its brim: neither open nor shut for ever
  at, born, last, expires, lead = now, now, -lag, 0, 0
  skip, rem, speed, epoch, fails, held, dial, ahead, row = 0, -memory, 1, now, -2, 0, 0, 0, nil
  redis.call('DEL', key)
  if kept then redis.call('HSET', key, 'v', kept) else stamp, version = 0, 0 end
  for i = 1, n do
    local l = limits[i]
    l.level, l.ret, l.top, l.parked, l.taken = l.cap, 0, 0, nil, nil
  end
end
if kinds then kinds.start() end

-- lifted says whether the booking to move was taken back; nil: there is none to move.
local lifted
local stay -- undoes that, and what came after: there is no other place that is no later
local old_place -- its place until then

-- The record. If the request was carried out before, the script only repeats its answer.

local changed = back or garbage or kinds ~= nil and kinds.begun == true
local m, place, before, claim, which, why, wait = 0, 0, 0, 0, -1, 0, 0
local recorded, since, repeated = -1, seq, false
local runs = '' -- of calls, if a limit has a kind and there are several: as kinds.note has them
local lost = 0 -- answers to this worker that the store has lost: 2: all, or only the record; 3: the latest
if r then
  if #r >= 24 then
    recorded, since, place = unpacked('ddd', r)
    if not (recorded >= 0 and recorded < 9007199254740992 and since >= 0 and since < 9007199254740992) then recorded, since = -1, 0 end
    m = since % 8192 - 512
    since = floor(since / 8192)
  end
  if seq < recorded then return 'ahead' end
  if seq == recorded then
    repeated, claim = true, lead
    -- A call that had no place then gets the wait as of now.
    while letter ~= '' and letter ~= 'B' and m == 0 do
      if letter == 'V' or letter == 'N' then lifted = false end
      arg = arg + 1
      step = ARGV[arg] or ''
      letter = string.sub(step, 1, 1)
    end
    before = place
    if m > 0 and #r >= 32 then
      before = unpacked('d', r, 25)
      if not (before <= place) then before = place end
    end
    for i = 1, min(n, floor((#r - 32) / 16)) do
      local y, up = unpacked('dd', r, 17 + 16 * i)
      limits[i].y, limits[i].up = y, (up >= 0 or limits[i].kind) and up < 1e15 and up or 0
      if #r >= 32 + 24 * n then limits[i].full = unpacked('d', r, 25 + 16 * n + 8 * i) end
    end
    if kinds and m > 1 then runs = string.sub(r, 33 + 24 * n) end
  else
    m, place = 0, 0
    -- The record lacks a request that the worker has had an answer to: the store has lost it. The
    -- store may have lost earlier charges, too, so they do not come back.
    if not (recorded >= heard) then
      if recorded >= 0 and heard < seq then lost = 3 end
      recorded, since = -1, seq
    end
  end
elseif heard < seq then
  lost = 2
end

-- The steps, until one that books.

if letter ~= 'B' and letter ~= '' and not repeated then
  local at_byte = 2
  local function number()
    at_byte = at_byte + 8
    return (unpacked('d', step, at_byte - 8))
  end

  local function lasts(units, rate)
    local sec = units / rate
    if sec * 1e9 < 1 then return 0 end
    return sec > 9.2e9 and 9.2e15 or ceil(sec * 1e9) / 1e3
  end

  -- A charge describes a booked call.
  local function read_charge()
    local seen, by = number(), number()
    local c = {born = number(), place = number(), before = number(), free = number(), settled = number() == 1, n = {}, y = {}, up = {}}
    for i = 1, number() do
      c.n[i], c.y[i], c.up[i] = number(), number(), number()
      c.partly = c.partly or c.y[i] == -1 / 0 -- this limit was not charged
    end
    -- A charge comes back only if the record proves that it was charged here, and under these
    -- limits.
    c.lost = seen ~= version or #c.n ~= n or by > recorded or by < since or c.born ~= born
    return c
  end

  local function left(c, i)
    local l = limits[i]
    return c.y[i] - l.ret + l.rate * (c.place - dial) / 1e6
  end

  local function latest(c)
    if c.settled or c.lost or c.partly or math.abs(c.place - dial - last) > 0.0025 + 1e-15 * math.abs(c.place) then return false end
    for i = 1, n do
      local l = limits[i]
      if l.kind then
        if math.abs(l.log.total - c.y[i]) > 4e-15 * max(l.log.total, l.cap) then return false end
      else
        local rest = left(c, i)
        if c.n[i] == 0 then rest = max(0, rest) end
        -- Allow for rounding, of the sum and of two nanoseconds, but for no cost.
        if math.abs(l.level - rest) > 1e-10 * max(l.level, l.cap) + 2e-9 * l.rate then return false end
      end
    end
    return true
  end

  -- before_of returns the value of last before c was booked.
  local function before_of(c)
    return max(-lag, floor((c.before - dial) * 1e3 + 0.5) / 1e3)
  end

  local function unbook(c)
    if not latest(c) then return false end
    for i = 1, n do
      local l = limits[i]
      if l.kind then
        kinds.undo(l, c, i)
        changed = changed or c.n[i] ~= 0
      else
        local level = l.level
        l.level = max(0, level - c.n[i] - c.up[i])
        changed = changed or l.level ~= level
      end
    end
    local booked = last
    last = before_of(c)
    changed = changed or last ~= booked
    return true
  end

  local function settle(c, used)
    if c.settled then return end
    local goes = false
    for i = 1, n do goes = goes or used[i] ~= 0 end
    for i = 1, n do
      local l, charged = limits[i], c.n[i] or 0
      if l.kind then
        if used[i] ~= charged then
          kinds.settle(l, c.place, c.up[i], charged, used[i], c.lost or c.y[i] == -1 / 0, goes)
          changed = true
        end
      elseif used[i] > charged then
        l.level = l.level + used[i] - charged
        changed = true
      elseif used[i] < charged and not c.lost then
        local safe = min(max(0, left(c, i) - l.rate * max(0, last) / 1e6), charged - used[i], l.level)
        l.level, l.ret, changed = l.level - safe, l.ret + safe, changed or safe > 0
      end
    end
  end

  local function hold(d, c, reason)
    d = min(d, most)
    if d <= max(0, rem) then return end
    local extra, booked = d - max(0, rem), last
    if c and latest(c) then booked = before_of(c) end
    local out, x, known = booked > -lag, extra
    if out then
      known = kinds and kinds.next()
      local free = known or dial
      if c and not c.lost and not known then
        local w = most
        for i = 1, n do
          if limits[i].rate > 0 then w = min(w, lasts(c.n[i], limits[i].rate)) end -- a calendar has none
        end
        free = min(c.free, c.place + w)
      end
      -- Or a slow clock would get to booked places sooner than it was to.
      if known and speed < 1 then x = dial_of(speed, extra) end
      x = min(max(0, free - dial), x)
    end
    rem, skip, held, changed = d, skip - x, reason, true
    dial = at - born - skip
    if x > 0 then
      for i = 1, n do
        local l = limits[i]
        if not l.kind then l.level = max(0, l.level - l.rate * x / 1e6) end
      end
      last = max(-lag, last - x)
    end
    if kinds then
      if out and not known then kinds.passed() end
      kinds.age(extra - x)
      kinds.look_all()
    end
    local s, short
    for i = 1, n do
      local l = limits[i]
      if l.rate > 0 and not (s and l.cap * s.rate >= s.cap * l.rate) then s, short = l, i end
    end
    if not s then return end
    local brim = s.cap
    if out then
      last = max(last, 1)
      if not s.kind then brim = brim + s.rate * max(0, last) / 1e6 end
    elseif c and not c.lost and c.y[short] > -1 / 0 then
      brim = brim - c.n[short]
    else
      brim = brim - min(1, brim)
    end
    if s.kind then
      kinds.drip(s, brim, dial + max(0, last))
      kinds.look(s, dial)
      return
    end
    s.level = max(s.level, brim)
    s.ret = s.ret + s.level
  end

  local function refused(e, d, longest, c, reason)
    if e == epoch or row then
      row = row or {calls = 0, refused = 0, top = speed, per = 0, fast = 0, trust = 0}
      row.refused, row.till, changed = min(row.refused + 1, 4095), at + 3.6e9, true
    end
    if e == epoch then
      local function begin(v)
        row.calls, row.refused, row.top = 0, 0, v
        return v
      end
      local function steer(v)
        local m, cut = row.calls / row.refused, max(0.01, v * (rem > -memory and 0.7 or 0.9))
        local full, none = row.refused >= 16, -row.trust
        row.fast = max(row.fast, v)
        if none < 0 then
          if not full and (row.refused < 5 or m >= row.per / 5) then return v end
          local next = m < row.per / 5 and max(0.01, 0.7 * v) or m < row.per / 2 and max(0.01, 0.8 * v) or v
          if full then
            row.trust = m > 3 * row.per and 0 or row.trust - 1
            if row.trust == 0 then row.per, row.fast = 0, v end
          end
          return begin(next)
        end
        if full then
          if row.per == 0 then
            row.per, none = m, 0
          elseif m >= 2 * row.per then
            row.per, row.fast, none = m, row.top, 0
          elseif cut <= row.fast * min(0.4, m / 150) or none >= 3 and v <= 0.6 * row.fast then
            row.per, row.trust = min(m, row.per), 128
            return begin(row.fast)
          elseif m < row.per / 2 then
            row.per, none = m, 0
          else
            none = min(none + 1, 3)
          end
          row.trust = -none
          begin(v)
        elseif row.per > 0 then
          m = row.per
        end
        return max(cut, min(v, max(0.5 * row.top, row.fast * min(0.4, m / 150))))
      end
      epoch = epoch + 1
      if fails == -2 then
        fails = 0
      elseif fails == -1 then
        fails = 0
        speed = steer(speed)
        if row.trust > 0 and d == 0 then return end
      else
        fails = fails + 1
      end
      local again = min(3.6e9, longest > 0 and longest or 3.6e9, fails < 12 and 1e6 * 2 ^ fails or 3.6e9)
      if fails > 0 or d == 0 then d = max(d, again) end
    end
    hold(d, c, reason)
  end

  -- remains holds the bucket if what the API says remains until its reset is no more than was
  -- filled since the call.
  local function remains(d, c, reason)
    for i = 1, n do
      local l, since, left = limits[i], 0, number()
      if l.kind then
        if c and not c.lost and c.y[i] > -1 / 0 then since = max(0, l.log.total - c.y[i] - kinds.booked(l)) + 1e-6 end
      elseif c and not c.lost and c.y[i] - l.ret >= -1e-8 * l.cap then
        since = max(0, l.level - c.y[i] + l.ret - l.rate * (c.place - dial) / 1e6 - l.rate * max(0, last) / 1e6) + 1e-6
      end
      if left >= 0 and left <= since then hold(d, c, reason) end
    end
  end

  local function resume()
    local ahead = max(0, rem)
    kinds.resume(ahead)
    for i = 1, n do
      local l = limits[i]
      if not l.kind then
        local brim = max(l.cap, math.abs(l.top))
        local level = l.top < 0 and (last > 0 or rem > 0) and brim or l.level + l.rate * ahead / 1e6
        l.level, l.ret, l.top = min(brim, level), 0, brim > l.cap and brim or 0
      end
    end
    born = at > born and at or born + 1
    dial = dial - ahead
    skip = at - born - dial
    rem, last, speed, fails, held, epoch, lead, changed, row = -memory, -lag, 1, -2, 0, epoch + 1, 0, true, nil
  end

  -- A limit that was in force before, but was not among the limits set last, goes on from where it
  -- was: it does not refill by going away.
  local function kept(l)
    local was = redis.call('HMGET', key, l.field)[1]
    if not was then return nil end
    local o = #was > 48 and kinds.read({field = l.field}, was)
    if o then
      kinds.look(o, dial)
      return o
    end
    o = {level = l.cap, ret = 0, top = 0, cap = l.cap, rate = l.rate}
    if #was ~= 32 and #was ~= 40 and #was ~= 48 then return o end
    local level, ret, shown
    level, ret, shown, o.rate = unpacked('dddd', was)
    if #was > 32 then o.top = unpacked('d', was, 33) end
    if #was > 40 then o.cap = unpacked('d', was, 41) end
    local x = o.rate * (dial - shown) / 1e6
    if x < 0 then
      level = max(level, min(level - x, max(o.cap, math.abs(o.top))))
    else
      level = max(0, level - x)
    end
    if level >= 0 and level <= 1e15 + 9.3e9 * o.rate and ret > -1e25 and ret < 1e25 and o.cap > 0 and o.rate > 0 then
      o.level, o.ret = level, ret
    else
      o.top, o.cap, o.rate = 0, l.cap, l.rate
    end
    return o
  end

  -- forget drops such limits while there are more than 8, in the order in which they were empty. One
  -- that comes again starts empty: so forget drops those with something in them only while there are
  -- more than 64. Their charges are lost.
  local function forget()
    local all, others, inforce = redis.call('HGETALL', key), {}, {}
    local from, most = dial - max(0, rem), 0 -- a hold may have let bucket time run ahead
    for i = 1, n do inforce[limits[i].field] = limits[i] end
    for i = 1, #all, 2 do
      local field, was = all[i], all[i + 1]
      if string.sub(field, 1, 1) == 'l' and (#was == 48 or #was == 136 or #was == 184) and not inforce[field] then
        local level, ret, shown, rate = unpacked('dddd', was)
        local empty, holds = shown + (#was == 48 and level / rate * 1e6 or ret), true
        if #was == 48 then
          holds = not (empty <= from + 0.0005)
        else
          holds = kinds.holds(field, was, from)
        end
        if not holds then most = most + 1 end
        others[#others + 1] = {field, empty, holds}
      end
    end
    table.sort(others, function(a, b)
      if a[3] ~= b[3] then return b[3] end
      return a[2] < b[2]
    end)
    for i = 1, max(min(#others - 8, most), #others - 64) do
      redis.call('HDEL', key, others[i][1], 'g' .. string.sub(others[i][1], 2))
      version = version + 2
    end
    kinds.prune(all, inforce)
  end

  local function replace()
    local was, list = {}, {}
    local theirs, count = number(), number()
    for i = 1, count do
      list[i] = {unit = number(), cap = number(), rate = number(), field = ARGV[arg + 1 + i]}
    end
    if at_byte < #step then
      for _, l in ipairs(list) do
        local kind, window = number(), number()
        if kind > 0 then l.kind, l.window = kind, window end
      end
    end
    local blob = ARGV[arg + 1]
    arg = arg + 1 + count
    local same = theirs == mine
    -- If these limits are in force already, nothing changes.
    if same and (blob ~= '') == set then return end
    local void, deaf = last > 1e6 and not same, 1e6
    local booked = {}
    for _, o in ipairs(limits) do
      -- A call may go for a second before its worker hears of the new limits. What is booked for
      -- later is void: without it the limit is no fuller than this.
      if void and o.kind then
        kinds.void(o, dial + deaf)
      elseif void then
        local brim = max(o.cap, math.abs(o.top)) + o.rate * deaf / 1e6
        o.level = o.top < 0 and brim or min(o.level, brim)
      end
      was[o.field] = o
      if o.top >= 0 then booked[o.unit] = min(booked[o.unit] or 1 / 0, o.level) end
    end
    if void then last, version = deaf, version + 1 end
    kinds.look_all()
    local olds, turned = {}, false
    for i, l in ipairs(list) do
      olds[i] = was[l.field]
      l.unknown = olds[i] and 0 or booked[l.unit] or 1 / 0
      was[l.field] = nil
      if not olds[i] then
        olds[i] = kept(l)
        turned = turned or olds[i] ~= nil
      end
    end
    turned = turned or next(was) ~= nil
    local away = max(0, last) / 1e6
    for i, l in ipairs(list) do
      local o = olds[i]
      l.level, l.ret, l.top, l.full, l.up = 0, 0, 0, 0, 0
      local kinded = l.kind or o and o.kind
      if kinded then
        kinds.change(l, o, l.unknown, turned)
        if l.kind and blob ~= '' then l.log.longest = l.rate > 0 and l.window or 0 end -- no worker has a longer window now
      elseif o then
        l.level, l.ret = o.level, o.ret + (o.rate - l.rate) * dial / 1e6
        -- The last booking may not have charged this limit: it cannot be undone.
        if turned then l.ret = l.ret + 1e-9 * max(o.level, o.cap) + 4e-9 * l.rate end
        local counts, top = o.top < 0 and (last > 0 or rem > 0), max(math.abs(o.top), o.cap)
        if counts or l.rate < o.rate and rem > 0 then
          l.top = -max(l.cap, top)
        elseif top > l.cap and (l.level > l.cap or rem > 0) then -- a hold may have let the limit leak ahead
          l.top = top
        end
        if l.rate > o.rate then l.level = l.level + (l.rate - o.rate) * min(away, o.level / o.rate) end
      end
      -- This limit was not charged for calls that are booked and have not gone.
      if away > 0 and l.unknown > 0 and not kinded then
        l.level = max(l.level, min(l.cap + l.rate * away, max(l.level, l.rate * away) + l.unknown))
      end
    end
    for field, o in pairs(was) do
      if o.kind then
        redis.call('HSET', key, unpack(kinds.keep({o}, {field, kinds.record(o)})))
      else
        local top = max(math.abs(o.top), o.cap)
        redis.call('HSET', key, field, pack('dddddd', o.level, o.ret, dial, o.rate, o.top < 0 and -top or top, o.cap))
      end
    end
    limits, n, version, changed = list, #list, version + 1, true
    forget()
    set, mine = blob ~= '', theirs
    version = version % 1048576
    stamp = floor(now / 1e3) % 4294967296 * 1048576 + version
    redis.call('HSET', key, 'v', string.format('%.0f ', stamp) .. blob)
  end

  local function units()
    local u = {}
    for i = 1, n do u[i] = number() end
    return u
  end

  local carry_out

  -- move takes the booking back that is to be booked anew.
  local function move()
    local c, from, was, kept = read_charge(), arg + 1, {last, rem, skip, speed, epoch, fails, held, changed}, {}
    local counts = row
    if row then
      counts = {}
      for k, v in pairs(row) do counts[k] = v end
    end
    for i = 1, n do
      local l, log = limits[i], nil
      if l.kind then
        log = {}
        for k, v in pairs(l.log) do log[k] = v end
      end
      kept[i] = {l.level, l.ret, l.top, log}
    end
    old_place, lifted = c.place, unbook(c)
    stay = lifted and function()
      last, rem, skip, speed, epoch, fails, held, changed = unpack(was, 1, 8)
      dial, row = at - born - skip, counts
      for i = 1, n do
        local l = limits[i]
        l.level, l.ret, l.top = kept[i][1], kept[i][2], kept[i][3]
        if l.kind then l.log = kept[i][4] end
      end
      arg = from
      carry_out()
    end
  end

  local nothing = {0, 0, 0, 0, 0, 0, 0, 0}
  carry_out = function()
    step, at_byte = ARGV[arg] or '', 2
    letter = string.sub(step, 1, 1)
    while letter ~= '' and letter ~= 'B' do
      if letter == 'V' then
        move()
      elseif letter == 'N' then
        lifted = false
      elseif letter == 'S' then
        local c = read_charge()
        settle(c, units())
      elseif letter == 'U' then
        local c = read_charge()
        if not unbook(c) then settle(c, nothing) end
        changed = changed or kinds ~= nil and kinds.unix ~= nil
      elseif letter == 'R' or letter == 'H' or letter == 'A' then
        local e, d, longest, reason = number(), number(), number(), number()
        local c = number() == 1 and read_charge() or nil
        if letter == 'R' then
          refused(e, d, longest, c, reason)
        elseif letter == 'H' then
          hold(d, c, reason)
        else
          remains(d, c, reason)
        end
      elseif letter == 'G' then
        if number() == epoch and fails ~= -1 then fails, changed = -1, true end
      elseif letter == 'M' then
        local u, bits = units(), 0
        for i = 1, n do
          local l = limits[i]
          if u[i] > 0 and l.level + u[i] >= l.cap * (1 - 0.5e-9) then bits = bits + 2 ^ (i - 1) end
          if l.kind then
            kinds.meter(l, u[i])
          else
            l.level = max(l.level, min(l.level + u[i], l.cap))
          end
        end
        m, changed = -1 - bits, true
      elseif letter == 'E' then
        resume()
      elseif letter == 'L' then
        replace()
      end
      arg = arg + 1
      step, at_byte = ARGV[arg] or '', 2
      letter = string.sub(step, 1, 1)
    end
  end
  carry_out()
end

-- Booking: find places for the costs in their order, the first one within its wait and the others
-- within the horizon, or further while the worker is behind the lead.

if letter == 'B' and lifted ~= false and (not repeated or m == 0) then
  local within, horizon, claims, runs = unpacked('dddd', step, 2)
  local at_byte = 34
  if lifted then within = most end
  if repeated then within = -1 end
  local begins, booked = claims > lead, claims
  if begins then booked = 0 end
  local first, took
  local soonest, rest = 0, 34 + (8 + 8 * n) * runs
  if #step > rest then -- not sooner: the worker hears of its place only then
    soonest = max(0, unpacked('d', step, rest) - max(0, rem))
    if speed < 1 then soonest = dial_of(speed, soonest) end
  end
  local u = {0}
  for _ = 1, runs do
    local count
    count, u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8] = unpacked(string.rep('d', n + 1), step, at_byte)
    at_byte = at_byte + 8 + 8 * n
    for i = 1, n do
      if u[i] > limits[i].cap and why == 0 then which, why, wait = i - 1, 1, most end -- the cost would go above the brim
    end
    while count > 0 and why == 0 do
      local limit = within
      if m > 0 then
        limit = horizon
        if claims > 0 and not begins and booked < lead and took > 0 then limit = max(limit, first + max(lag, first)) end
      end
      local w, slowest, real, books = 0, -1, 0, true
      for pass = 1, 2 do -- the second: when a call that is refused is to come back
        w = max(soonest, last)
        slowest, books = -1, true
        if kinds then kinds.back = false end
        for i = 1, n do
          local l = limits[i]
          if u[i] > 0 then
            local d
            if l.kind then
              d = kinds.wait(l, u[i], w, pass == 2)
            else
              local sum = l.level + u[i]
              local over = sum - l.cap
              local sec = over / l.rate
              -- Ignore less than a nanosecond, and errors in the last bits of the sum.
              d = (sec * 1e9 < 1 or over <= 2e-15 * sum) and 0 or sec > 9.2e9 and 9.2e15 or ceil(sec * 1e9 - 0.01) / 1e3
            end
            if d > w then w, slowest = d, i - 1 end
          end
        end
        if kinds then
          local at, by, can = kinds.calendars(u, w, slowest, pass == 2)
          w, slowest, books = at, by, can
        end
        real = max(0, rem) + (speed < 1 and real_of(speed, w) or w)
        if pass == 1 and real <= min(limit, most) + 0.0005 and books and (m > 0 or not lifted or dial + w <= old_place + 1) then break end -- ignore what sums have left below a nanosecond
        which, why, wait = slowest, 1, (repeated and max(real, 1) or real) + ahead
        if not kinds or not kinds.back then break end -- no booking counts on the end of a fixed window
      end
      if why > 0 then break end
      for i = 1, n do
        local l = limits[i]
        if l.kind then
          kinds.fill(l, u[i], w)
          if m == 0 then l.full, l.y, l.up = l.log.total, l.log.total, l.of end
        else
          local run = l.rate * w / 1e6
          if u[i] > 0 then
            if m == 0 then l.up = max(0, run - l.level) end
            l.level = max(l.level, run) + u[i]
          end
          if m == 0 then l.full, l.y = l.level - run, l.level - run + l.ret end
        end
      end
      if kinds then kinds.note(dial + w, 1) end
      if m == 0 then place, before, first = dial + w, dial + last, real end
      last = max(last, w)
      if rem > 0 then last = max(last, 1) end
      m, count, changed = m + 1, count - 1, true
      if claims > 0 then
        booked, took = booked + u[1], u[1]
        lead = max(lead, booked)
        claim = begins and lead or booked
      elseif count > 0 and within == 0 and horizon == 0 and last <= 0 then
        -- Book as many more as fit at once.
        local more = count
        for i = 1, n do
          local l = limits[i]
          if u[i] > 0 then more = min(more, l.kind and kinds.room(l, u[i]) or floor((l.cap - l.level + l.rate * 0.9e-9) / u[i])) end
        end
        more = max(0, more)
        for i = 1, more > 0 and n or 0 do
          local l = limits[i]
          if l.kind then
            kinds.fill(l, more * u[i], w)
          else
            l.level = l.level + more * u[i]
          end
        end
        if kinds and more > 0 then kinds.note(dial + w, more) end
        m, count = m + more, count - more
      end
    end
    if why > 0 then break end
  end
  if m == 0 and stay then
    stay()
    which, why, wait = -1, 0, 0
  end
  if row and not repeated then row.calls = min(row.calls + m, 4294967295) end
end
local counts, top, per, fast, till = 0, 0, 0, 0, 0
if row then
  counts = (row.calls * 4096 + row.refused) * 256 + row.trust + 3
  top, per, fast, till = row.top, row.per, row.fast, row.till
end

-- Write the state.

if kinds then
  kinds.look_all()
  if not repeated and m > 1 then runs = kinds.runs() end
end
if (changed or spoilt or fence == 1) and not repeated then
  local w, left, values = last + lag, 0, {'s', '', worker, '', '', ''}
  local k = 4
  local record, fulls = nil, ''
  if m > 0 then
    record = pack('dddd', seq, since * 8192 + m + 512, place, before)
  else
    record = pack('ddd', seq, since * 8192 + m + 512, dial)
  end
  recorded = seq
  for i = 1, n do
    local l = limits[i]
    values[k + 1] = l.field
    if l.kind then
      if ahead > 0 then l.log.skip = -1 / 0 end -- the clock has gone back by a moment that bucket time does not count
      values[k + 2] = kinds.record(l)
      if l.rate > 0 then
        w = max(w, l.ret, kinds.kept(l))
      else
        left = max(left, l.ret)
      end
    else
      values[k + 2] = pack('ddddd', l.level, l.ret, dial, l.rate, l.top ~= 0 and l.top or l.cap)
      w = max(w, min(l.level / l.rate * 1e6, most))
    end
    k = k + 2
    if m > 0 then record = record .. pack('dd', l.y, l.up) end
    if m > 1 then fulls = fulls .. pack('d', l.full) end
  end
  local need = max(max(0, rem) + (speed < 1 and real_of(speed, w) or w), rem + memory, left)
  skip = skip + ahead
  if skip ~= 0 or rem ~= -memory or speed ~= 1 or epoch ~= born or fails >= 0 then
    values[k + 1], values[k + 2] = 'c', pack('dddddd', skip, rem, speed, epoch, fails, held)
    if speed < 1 then need = max(need, max(0, rem) + math.log(1 / speed) / growth * 1e6) end
  elseif c then
    redis.call('HDEL', key, 'c')
  end
  if row then
    values[#values + 1] = 'r'
    values[#values + 1] = pack('ddddd', counts, top, per, fast, till)
    need = max(need, till - at)
  elseif rowed then
    redis.call('HDEL', key, 'r')
  end
  if kinds then kinds.keep(limits, values) end
  -- The key outlives its contents, and the longest time after which a worker may repeat a request;
  -- if limits were set, by 30 days.
  local keep = set and 2.592e12 or 6e7
  local ttl
  if expires < at + need + keep / 2 then
    ttl = min(need * 1.25, need + 8.64e10) + keep
    expires = at + ttl
  end
  if fails == -1 then mine = -mine end
  if lead > 0 then
    values[2] = pack('dddddd', at + ahead, born, last, expires, mine, lead)
  else
    values[2] = pack('ddddd', at + ahead, born, last, expires, mine)
  end
  values[4] = record .. fulls .. runs
  skip = skip - ahead

  -- A worker without a record makes room for one, and drops what nobody uses: old records, and
  -- empty levels. If that is too little, it drops the oldest quarter of the records: dropping one
  -- at a time would make each decision look at all of them.
  if not r and redis.call('HLEN', key) >= 1024 then
    local all, records, used = redis.call('HGETALL', key), {}, {}
    for i = 1, n do used[limits[i].field] = true end
    for i = 1, #all, 2 do
      local field, was = all[i], all[i + 1]
      local kind = string.sub(field, 1, 1)
      if kind == 'w' and #was >= 24 then
        local _, _, place = unpacked('ddd', was)
        if place < dial - 6e7 then
          redis.call('HDEL', key, field)
        else
          records[#records + 1] = {field, place}
        end
      elseif kind == 'k' and #was >= 136 then
        local _, ret, shown = unpacked('ddd', was)
        if shown + ret < dial then redis.call('HDEL', key, field) end
      elseif kind == 'l' and not used[field] then
        local level, ret, shown, rate = 0, 0, 0, 1
        if #was >= 32 then level, ret, shown, rate = unpacked('dddd', was) end
        if #was > 48 then level, ret, shown = 0, 0, shown + ret end
        -- Callers who were charged still need to know what has come back.
        if ret == 0 and not (shown + (level > 0 and level / rate * 1e6 or 0) > dial) then redis.call('HDEL', key, field, 'g' .. string.sub(field, 2)) end
      end
    end
    if #records > 768 then
      table.sort(records, function(a, b) return a[2] < b[2] end)
      for i = 1, #records - 768 do redis.call('HDEL', key, records[i][1]) end
    end
  end
  redis.call('HSET', key, unpack(values))
  if ttl then redis.call('PEXPIRE', key, string.format('%.0f', ttl / 1e3 + 1)) end
end

-- The answer. Numbers that mostly have their usual value come last, and only if one of them has
-- not.

local l = limits[1]
local reply = pack('dddddddddddddddd', recorded, at, born, last, fails, set and stamp or -version, claim, m, place, before, n,
  l.level, l.ret, l.top, l.full, l.up)
for i = 2, n do
  l = limits[i]
  reply = reply .. pack('ddddd', l.level, l.ret, l.top, l.full, l.up)
end
if repeated or garbage or spoilt or lost > 0 or differ or why > 0 or skip ~= 0 or rem ~= -memory or speed ~= 1 or epoch ~= born then
  reply = reply .. pack('dddddddddddddddd', repeated and 1 or 0, (garbage or spoilt) and 1 or lost, differ and 1 or 0, which, why, wait,
    skip, rem, speed, epoch, rem > 0 and held or 0, counts, top, per, fast, till)
end
if repeated and m > 0 then
  for i = 1, n do reply = reply .. pack('d', limits[i].y or -1 / 0) end
end
if kinds and kinds.unix then return {reply, pack('d', kinds.unix) .. runs} end
return reply
