-- One step of a bucket, as Op.Apply of package outbound computes it. Times are
-- microseconds, with the nanoseconds behind the point; rates are units per second.
--
-- KEYS[1] is a hash:
--   s        at, born, last, when the key expires, print of the limits last used, lead
--   c        skip, rem, speed, epoch, fails; absent until they differ from a new key's
--   l<limit> level, ret, dial at which it was so[, top]
--   v        version of the limits[, the limits that were set, as JSON]
--   w<id>    a worker's record: seq of its last request that changed anything,
--            how many calls that booked, the place of the first, and how full each
--            limit is there; for a meter, -1 - the limits brought to the brim, as bits
--
-- ARGV: worker, seq, 1 if it is not known what became of the request before, the
-- version of the limits known, print, number of limits n, n times (field, unit,
-- capacity, rate), then steps, each a letter and its arguments.

local lag, memory, year100, most = 1e5, 1e7, 3.15576e15, 4611686018427387
local growth = math.log(1.1) / 60
local key, worker, seq = KEYS[1], ARGV[1], tonumber(ARGV[2])
local floor, ceil, min, max, exp, log = math.floor, math.ceil, math.min, math.max, math.exp, math.log

-- Numbers are kept without loss: as doubles, or as text where there is no struct.
local struct = rawget(_G, 'struct')
local function encode(t)
  if struct then
    return struct.pack('<' .. string.rep('d', #t), unpack(t))
  end
  for i = 1, #t do t[i] = string.format('%.17g', t[i]) end
  return table.concat(t, ' ')
end

-- decode returns nil for what encode did not make.
local function decode(s, least, size)
  if not s then return nil end
  local t = {}
  if struct then
    if #s % 8 ~= 0 then return nil end
    t = {struct.unpack('<' .. string.rep('d', #s / 8), s)}
    t[#t] = nil -- the position after them
  else
    for x in string.gmatch(s, '%S+') do t[#t + 1] = tonumber(x) or 0 / 0 end
  end
  if #t < least or #t > size then return nil end
  for i = 1, #t do
    if not (t[i] > -1e25 and t[i] < 1e25) then return nil end
  end
  return t
end

-- up makes microseconds of seconds, rounded up to a nanosecond.
local function up(sec)
  if sec > 9.2e9 then return 9.2e15 end
  return ceil(sec * 1e9) / 1e3
end

-- lasts is how long n units take to run out.
local function lasts(n, rate)
  if n / rate * 1e9 >= 1 then return up(n / rate) end
  return 0
end

local function expm1(x)
  if x < 1e-3 then return x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5)))) end
  return exp(x) - 1
end

local function log1p(x)
  if x < 1e-3 then return x * (1 - x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x / 6))))) end
  return log(1 + x)
end

local function dial_of(v, x)
  if v >= 1 or x <= 0 then return x, min(v, 1) end
  local full, sec = log(1 / v) / growth, x / 1e6
  if sec < full then
    return min(x, floor(v / growth * expm1(growth * sec) * 1e9) / 1e3), v * exp(growth * sec)
  end
  return max(0, x - up(full - (1 - v) / growth)), 1
end

local function real_of(v, y)
  if v >= 1 or y <= 0 then return y end
  local sec = y / 1e6
  if sec >= (1 - v) / growth then
    return y + up(log(1 / v) / growth - (1 - v) / growth) + 0.001
  end
  return max(y, up(log1p(growth * sec / v) / growth)) + 0.001
end

-- What is there.

local limits, own, arg = {}, {}, 6 -- arg is the last argument that was read

local function next_arg()
  arg = arg + 1
  return ARGV[arg]
end

local function number()
  arg = arg + 1
  return tonumber(ARGV[arg])
end

local function read_limits(n)
  local list = {}
  for i = 1, n do
    list[i] = {field = next_arg(), unit = number() + 1, cap = number(), rate = number()}
  end
  return list
end

own = read_limits(tonumber(ARGV[6]))
local fields = {'s', 'c', 'v', worker}
for i = 1, #own do fields[4 + i] = own[i].field end
local got = redis.call('HMGET', key, unpack(fields))

local version, set = 0, nil
limits = own
if got[3] then
  version, set = string.match(got[3], '^(%d+) ?(.*)$')
  version = tonumber(version) or 0
  local ok, list = pcall(cjson.decode, set or '')
  if ok and type(list) == 'table' and #list > 0 then
    limits, fields = {}, {}
    for i = 1, #list do
      local l = list[i]
      fields[i] = 'l' .. (l.unit or 0) .. (l.name or '')
      limits[i] = {field = fields[i], unit = (l.unit or 0) + 1, cap = l.capacity, rate = l.leak_rate}
    end
    local levels = redis.call('HMGET', key, unpack(fields))
    for i = 1, #list do got[4 + i] = levels[i] end
  else
    set = nil
  end
end

local t = redis.call('TIME')
local now = t[1] * 1e6 + t[2]

local garbage = false
local function sane(s, least, size)
  local t = decode(s, least, size)
  garbage = garbage or s and not t
  return t
end

local at, born, last, expires, print, lead = now, now, -lag, 0, 0, 0
local skip, rem, speed, epoch, fails = 0, -memory, 1, now, -2
local s, c, record = sane(got[1], 6, 6), sane(got[2], 5, 5), sane(got[4], 3, 11)
if s then
  at, born, last, expires, print, lead = s[1], s[2], s[3], s[4], s[5], s[6]
  epoch = born
  garbage = garbage or not (at - now < year100 and now - at < year100
    and born - now < year100 and now - born < year100 and last >= -lag and last < year100)
end
if c then
  skip, rem, speed, epoch, fails = c[1], c[2], c[3], c[4], c[5]
  garbage = garbage or not (s and rem >= -memory and rem < year100
    and speed >= 0.01 and speed <= 1 and skip > -2 * year100 and skip < 2 * year100)
end
for i = 1, #limits do
  local l = limits[i]
  l.stored = sane(got[4 + i], 3, 4)
  garbage = garbage or l.stored and not (s and l.stored[1] >= 0 and l.stored[1] < 1e15)
end
local differ = s and not set and print ~= tonumber(ARGV[5])
print = tonumber(ARGV[5])
if garbage then -- neither open nor shut for ever: a new life, with every limit at its brim
  at, born, last, expires, lead = now, now, -lag, 0, 0
  skip, rem, speed, epoch, fails = 0, -memory, 1, now, -2
  redis.call('DEL', key)
  if set then redis.call('HSET', key, 'v', got[3]) end
  for i = 1, #limits do limits[i].stored = {limits[i].cap, 0, 0} end
end

-- Advance.

local back = now < at
local function advance()
  local e = now - at
  at = now
  if e <= 0 then
    skip = skip + e
    return
  end
  local x = max(0, e - max(0, rem))
  rem = max(-memory, rem - e)
  x, speed = dial_of(speed, x)
  skip = skip + e - x
  last = max(-lag, last - x)
end
advance()

local function dial() return at - born - skip end

for i = 1, #limits do
  local l = limits[i]
  local was = l.stored
  l.level, l.ret, l.top = 0, 0, 0
  if was then
    l.level, l.ret, l.top = max(0, was[1] - l.rate * (dial() - was[3]) / 1e6), was[2], was[4] or 0
  end
end

local function leak(x)
  if x <= 0 then return end
  for i = 1, #limits do
    local l = limits[i]
    l.level = max(0, l.level - l.rate * x / 1e6)
  end
  last = max(-lag, last - x)
end

local function real(w) return max(0, rem) + real_of(speed, w) end

-- The reply.

local changed = back or garbage
local m, place, before, claim, which, why, wait = 0, 0, 0, 0, -1, 0, 0
local full = {} -- how full the limits are at the first place

local function reply(status)
  local r = {status, at, born, skip, rem, last, speed, epoch, fails, version, claim, m, place, before,
    which, why, wait, garbage and 1 or 0, differ and 1 or 0, #limits}
  for i = 1, #limits do
    local l = limits[i]
    r[#r + 1] = l.level
    r[#r + 1] = l.ret
    r[#r + 1] = l.top
    r[#r + 1] = full[i] or 0
  end
  r = struct and encode(r) or 't' .. encode(r)
  if version ~= tonumber(ARGV[4]) then return {r, set or ''} end
  return r
end

if record and seq <= record[1] then
  if seq < record[1] then return 'stale' end
  m, place = record[2], record[3]
  for i = 1, #limits do full[i] = record[3 + i] or 0 end
  claim = lead
  return reply(1)
end

-- Charges: what a booking has taken.

local function read_charge()
  local seen, seq = number(), number()
  local c = {born = number(), place = number(), before = number(), settled = number() == 1, n = {}, y = {}}
  for i = 1, number() do
    c.n[i], c.y[i] = number(), number()
  end
  -- Nothing comes back of what is not known to have been charged here, or was
  -- charged under other limits.
  c.other = seen ~= version or #c.n ~= #limits
  c.lost = c.other or not record or record[1] < seq or c.born ~= born
  return c
end

local function left(c, i)
  local l = limits[i]
  return c.y[i] - l.ret + l.rate * (c.place - dial()) / 1e6
end

local function latest(c)
  if c.settled or c.lost or math.abs(c.place - dial() - last) > 0.002 then return false end
  for i = 1, #limits do
    local l, rest = limits[i], left(c, i)
    if c.n[i] == 0 then rest = max(0, rest) end
    -- Rounding, not a cost: of the sum, and of two nanoseconds.
    if math.abs(l.level - rest) > 1e-10 * max(l.level, l.cap) + 2e-9 * l.rate then return false end
  end
  return true
end

local function unbook(c)
  if not latest(c) then return false end
  for i = 1, #limits do
    limits[i].level = max(0, limits[i].level - c.n[i])
  end
  last = max(-lag, c.before - dial())
  changed = true
  return true
end

local function settle(c, used)
  if c.settled or c.other then return end
  for i = 1, #limits do
    local l, n = limits[i], c.n[i]
    if used[i] > n then
      l.level = l.level + used[i] - n
      changed = true
    elseif used[i] < n and not c.lost then
      local safe = min(max(0, left(c, i) - l.rate * max(0, last) / 1e6), n - used[i], l.level)
      l.level, l.ret = l.level - safe, l.ret + safe
      changed = true
    end
  end
end

local function hold(d, c)
  d = min(d, most)
  if d <= max(0, rem) then return end
  local extra, here, booked = d - max(0, rem), dial(), last
  if c and latest(c) then booked = max(-lag, c.before - here) end
  local out, x = booked > -lag, extra
  if out then
    local free = here
    if c and not c.lost then
      local w = most
      for i = 1, #limits do w = min(w, lasts(c.n[i], limits[i].rate)) end
      free = c.place + w
    end
    x = min(max(0, free - here), extra)
  end
  rem, skip, changed = d, skip - x, true
  leak(x)
  local s, short = limits[1], 1
  for i = 2, #limits do
    if limits[i].cap * s.rate < s.cap * limits[i].rate then s, short = limits[i], i end
  end
  local brim = s.cap
  if out then
    last = max(last, 1)
    brim = brim + s.rate * max(0, last) / 1e6
  elseif c and not c.lost then
    brim = brim - c.n[short]
  else
    brim = brim - min(1, brim)
  end
  s.level = max(s.level, brim)
  s.ret = s.ret + s.level
end

local function refused(e, d, c)
  if e == epoch then
    epoch, changed = epoch + 1, true
    if fails == -2 then
      fails = 0
    elseif fails == -1 then
      fails = 0
      speed = max(0.01, speed * (rem > -memory and 0.7 or 0.9))
    else
      fails = fails + 1
    end
    local again = fails < 12 and min(3.6e9, 1e6 * 2 ^ fails) or 3.6e9
    if fails > 0 or d == 0 then d = max(d, again) end
  end
  hold(d, c)
end

-- The steps.

local function read_units()
  local cost, units = {number(), number(), number(), number()}, {}
  for i = 1, #limits do
    local n = cost[limits[i].unit] or 0
    units[i] = n > 0 and max(n, limits[i].cap * 1e-9) or n
  end
  return units
end

local lifted -- nil: nothing was to be moved

-- fill books one place that is due within so much real time, or returns false.
local function fill(n, within)
  local w, slowest = max(0, last), -1
  for i = 1, #limits do
    local l = limits[i]
    if n[i] > l.cap then which, why = i - 1, 2 end
    if n[i] > 0 then
      local d = lasts(l.level + n[i] - l.cap, l.rate)
      if d > w then w, slowest = d, i - 1 end
    end
  end
  if why == 2 then return false end
  local r = real(w)
  if r > min(within, most) then
    which, why, wait = slowest, 1, r
    return false
  end
  if m == 0 then place, before = dial() + w, dial() + last end
  for i = 1, #limits do
    local l = limits[i]
    local run = l.rate * w / 1e6
    if n[i] > 0 then l.level = max(l.level, run) + n[i] end
    if m == 0 then full[i] = l.level - run end
  end
  last = max(last, w)
  if rem > 0 then last = max(last, 1) end
  m, changed = m + 1, true
  return true, r
end

-- room is how many more calls of n fit at once, if none of them has to wait.
local function room(n, count)
  if rem > 0 or last > 0 then return 0 end
  for i = 1, #limits do
    local l = limits[i]
    if n[i] > 0 then count = min(count, floor((l.cap - l.level + l.rate * 0.9e-9) / n[i])) end
  end
  return max(0, count)
end

local function book()
  local within, horizon, runs = number(), number(), 0
  claim = number()
  local first
  local claims = claim ~= 0
  claim = min(claim, lead)
  runs = number()
  if lifted then within = most end
  if lifted == false then runs = 0 end
  for _ = 1, runs do
    local count, n = number(), read_units()
    local counted = false
    for i = 1, #limits do counted = counted or n[i] > 0 end
    if not counted then
      why = 3
      return
    end
    while count > 0 do
      local limit = within
      if m > 0 then
        limit = horizon
        if claims and claim < lead then limit = max(limit, first + lag) end
      end
      local ok, r = fill(n, limit)
      if not ok then return end
      first = first or r
      claim = claim + n[1]
      count = count - 1
      if limit == 0 and horizon == 0 and not claims then -- the others at once, too, or not
        local more = room(n, count)
        for i = 1, #limits do limits[i].level = limits[i].level + more * n[i] end
        m, count = m + more, count - more
      end
    end
  end
end

local step = next_arg()
while step do
  if step == 'V' then
    lifted = unbook(read_charge())
  elseif step == 'N' then
    lifted = false
  elseif step == 'S' then
    local c = read_charge()
    settle(c, read_units())
  elseif step == 'U' then
    local c = read_charge()
    if not unbook(c) then
      local none = {}
      for i = 1, #limits do none[i] = 0 end
      settle(c, none)
    end
  elseif step == 'R' or step == 'H' then
    local e, d = number(), number()
    local c = number() == 1 and read_charge() or nil
    if step == 'R' then refused(e, d, c) else hold(d, c) end
  elseif step == 'G' then
    if number() == epoch and fails ~= -1 then fails, changed = -1, true end
  elseif step == 'B' then
    book()
    if claim > lead then lead, changed = claim, true end
  elseif step == 'M' then
    local n, bits = read_units(), 0
    for i = 1, #limits do
      local l = limits[i]
      if n[i] > 0 and l.level + n[i] >= l.cap then bits = bits + 2 ^ (i - 1) end
      l.level = max(l.level, min(l.level + n[i], l.cap))
    end
    m, changed = -1 - bits, true
  elseif step == 'E' then
    local held, shows = max(0, rem), dial()
    for i = 1, #limits do
      local l = limits[i]
      l.level, l.ret = min(max(l.cap, l.top), l.level + l.rate * held / 1e6), 0
    end
    born = at > born and at or born + 1
    skip = at - born - (shows - held)
    rem, last, speed, fails, epoch, lead, changed = -memory, -lag, 1, -2, epoch + 1, 0, true
  elseif step == 'L' then
    local blob, was, list = next_arg(), limits, read_limits(number())
    if #list == 0 then list = own end
    local gone = {}
    for _, o in ipairs(was) do gone[o.field] = o end
    for _, l in ipairs(list) do
      local o = gone[l.field]
      if o and o.level then
        local level, ret, top = o.level, o.ret + (o.rate - l.rate) * dial() / 1e6, max(o.top, o.cap)
        l.level, l.ret, l.top = level, ret, level > l.cap and top or 0
        gone[l.field] = nil
      else
        l.level, l.ret, l.top = 0, 0, 0
      end
      local brim = l.cap + l.rate * max(0, last) / 1e6
      if last > -lag and l.level < brim then
        l.level, l.ret = brim, l.ret + brim
      end
    end
    for field in pairs(gone) do redis.call('HDEL', key, field) end
    limits, version, changed = list, version + 1, true
    set = blob ~= '' and blob or nil
    redis.call('HSET', key, 'v', string.format('%.0f ', version) .. blob)
  end
  step = next_arg()
end

if not changed and ARGV[3] ~= '1' then return reply(0) end

-- Save.

local values = {'s', '', worker, ''}
if skip ~= 0 or rem ~= -memory or speed ~= 1 or epoch ~= born or fails ~= -2 then
  values[5], values[6] = 'c', encode({skip, rem, speed, epoch, fails})
end
local need = real(last + lag)
for i = 1, #limits do
  local l = limits[i]
  need = max(need, real(lasts(l.level, l.rate)))
  values[#values + 1] = l.field
  values[#values + 1] = encode(l.top > 0 and {l.level, l.ret, dial(), l.top} or {l.level, l.ret, dial()})
end
if speed < 1 then need = max(need, max(0, rem) + up(log(1 / speed) / growth)) end
need = max(need, rem + memory)
local keep = set and 2.592e12 or 6e7
local ttl
if expires < at + need + keep / 2 then
  ttl = min(need * 1.25, need + 8.64e10) + keep
  expires = at + ttl
end
values[2] = encode({at, born, last, expires, print, lead})
local r = {seq, m, m > 0 and place or dial()}
for i = 1, #limits do
  if m > 0 then r[3 + i] = full[i] end
end
values[4] = encode(r)

-- A worker that is new here makes room for its record.
local most_records = 1024
if not record and redis.call('HLEN', key) >= most_records then
  local all, oldest, age = redis.call('HGETALL', key), nil, nil
  for i = 1, #all, 2 do
    local r = string.sub(all[i], 1, 1) == 'w' and (decode(all[i + 1], 3, 11) or {0, 0, -year100})
    if r and (not age or r[3] < age) then oldest, age = all[i], r[3] end
    if r and r[3] < dial() - 6e7 then redis.call('HDEL', key, all[i]) end
  end
  if oldest then redis.call('HDEL', key, oldest) end
end
redis.call('HSET', key, unpack(values))
if ttl then redis.call('PEXPIRE', key, string.format('%.0f', ttl / 1e3 + 1)) end
return reply(0)
