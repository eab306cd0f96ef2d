-- One step of a key. The script changes the state, and returns the numbers from before, the
-- server's time and how many calls it has booked. Go computes the reply from these with Op.ApplyAt.
-- A step that is not hot goes by compare and swap, and so do all steps where there is no cmsgpack.
--
-- What the script may never do:
--   * book a call that Op.ApplyAt would not book from the same numbers at the same time;
--   * carry a step out twice, or after a later one of the same process;
--   * write before it has computed all: an error then leaves the key as it was;
--   * use a command or a function that is newer than Redis 6.2, or a key that is not KEYS[1].
--
-- KEYS[1] is a hash. Small values keep it in its compact encoding, so none of a key with one limit
-- is longer than 64 bytes. Numbers are written by cmsgpack. Times at, born, made, until, gid and
-- those of calendars are whole microseconds (µs) of Unix, and expires is seconds. Other times are
-- whole nanoseconds (ns), and those of the dial are relative to the dial at that time.
--
--   s     token (6 bytes: other after each write), edition of v (4 bytes), then numbers: at,
--         expires, skip, rem + 1e10, last + 1e8, speed, epoch less that of v, fails, why, top, ids,
--         lead, whether there is a row, gid (the time of g; 0: there is none);
--         of each limit level, ret;
--         of each limit that is not leaky begin, end, units, sure (0, 1), skip, 0; of a window
--         begin, end and units of the newest slot, how many older ones there are, the end of the
--         first and of the last of these;
--         the row: calls, refused, top, per, fast, trust, until; of each limit leaked, over, owed
--   g     only if a window has older slots: gid, skip then, and ends and units of all of them
--   v, u  born, made, and what hot steps do not change, for Go; u is what is beyond 64 bytes of v
--   l     lock: µs until which the key waits for a swap, a space, the field of its process
--   w…    a process's last step: seq, a space, then numbers: now less at, calls booked (-1: a
--         swap), whether there was a key, then s from at on as it was, and g if it did not know it
--
-- ARGV: 1 the name of the process's field  2 seq  3 clock (µs, at most what the server's clock
--       shows; 0: not known)  4 nothing, or a hot step  5 hot: v of a key that is to be made, less
--       born and made. Swap: the first bytes of s that were read  6 s, nothing if nothing is to be
--       written  7 v  8 g  9 for how many ms the server keeps the key  10 reserve (µs)
-- A hot step is token, edition, then numbers: fence, keep (µs), age (µs), gid that is known, ref
-- (µs), n, move (0 none, 1 undo, 2 book nothing), reports, backs, runs; capacity, rate, kind and
-- window of each limit; begin, end and next of each calendar's period, in seconds; the charge of the
-- move; the reports; the backs; and if there are runs wait, horizon, after, claim, weight, the runs.
--   charge: id (-1: settled; 1e17: of another life, or none), prev, place and before less (ref -
--           born), until (µs), of each limit N, Y (-inf: nothing can be returned), Up
--   report: 0 settled: charge, Used of each limit. 1 refused, 2 held: epoch less that of v, wait,
--           longest wait, reason, charge and when it is free. 4 succeeded: epoch less that of v
--   run: how many calls, and what each costs of each limit
local floor, ceil, min, max, sub, call = math.floor, math.ceil, math.min, math.max, string.sub, redis.call
local lib = rawget(_G, 'cmsgpack')
local key, worker, seq, clock, hot = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local got, t = redis.pcall('HMGET', key, 's', worker, 'l'), call('TIME')
local now = t[1] * 1e6 + t[2]
local s, r, lock = got[1], got[2], got[3]
if got.err then s = 'wrong type' elseif s == '' then s = 'nothing' end
local prior = r and tonumber(string.match(r, '^%d+')) or 0 -- the process's last step on record
if prior == seq then return {'again', now, prior, r} end -- a step is carried out once
if prior > seq then return {'old', now, prior} end

local function seen(word)
  local f = got.err and {} or call('HMGET', key, 'v', 'u', 'g')
  return {word, now, prior, s or '', (f[1] or '') .. (f[2] or ''), f[3] or ''}
end

local function write(value, record, v, g, ttl)
  if not r and lib and not got.err and call('HLEN', key) > 1000 then -- forget the processes that have not used the key for the longest
    local all, times = call('HGETALL', key), {}
    for i = 1, #all, 2 do
      if #all[i] > 1 then
        local p = {pcall(lib.unpack, (string.gsub(all[i + 1], '^%d+ ', '')))}
        times[#times + 1] = {(tonumber(p[2]) or 0) + (tonumber(p[5]) or 0), all[i]}
      end
    end
    table.sort(times, function(a, b) return a[1] < b[1] end)
    for i = 1, #times - 768 do call('HDEL', key, times[i][2]) end
  end
  if got.err then call('DEL', key) end
  if v ~= '' then call('HSET', key, 'v', sub(v, 1, 64), 'u', sub(v, 65)) end
  if g == '' then call('HDEL', key, 'g') elseif g then call('HSET', key, 'g', g) end
  if lock then call('HDEL', key, 'l') end
  call('HSET', key, 's', value, worker, record)
  if ttl then call('PEXPIRE', key, ttl) end
end

if not hot then return seen('look') end
if clock > 0 and (clock > now or clock < now - 1e6) then return seen('late') end
if lock then
  local till = tonumber(string.match(lock, '^%d+')) or 0
  if till > now and till <= now + 1e6 and sub(lock, -#worker) ~= worker then return {'busy', now, prior, till - now} end
end
if hot == '' then -- a swap
  local was = ARGV[5]
  if was == '' and s or was ~= '' and sub(s or '', 1, #was) ~= was then -- another process was first
    if s and not got.err then call('HSET', key, 'l', string.format('%.0f ', now + ARGV[10]) .. worker) end
    return seen('look')
  end
  if ARGV[6] == '' then return {'same', now, prior} end
  write(ARGV[6], ARGV[2] .. ' ' .. (lib and lib.pack(now, -1) or ''), ARGV[7], ARGV[8], ARGV[9])
  return {'done', now, prior}
end
if not lib then return seen('bare') end

local pack, unp, fmod = lib.pack, lib.unpack, math.fmod
local growth = 0.0015885029967387489 -- ln 1.1 / 60, per second: a slow clock speeds up by 10 % a minute
local q, d, made = unp(sub(hot, 11)), nil, ''
local fence, keep, age, known, ref, n, move, reports, backs, runs = unpack(q, 1, 10)
local pos = 11 -- in q
local cap, rate, kind, window, level, ret, plain, parts = {}, {}, {}, {}, {}, {}, true, 0
for i = 1, n do
  cap[i], rate[i], kind[i], window[i] = unpack(q, pos, pos + 3)
  pos = pos + 4
  if kind[i] > 0 then plain, parts = false, parts + 6 end
end
if not s then
  if ARGV[5] == '' then return {'missing', now, prior} end
  made = pack(now, now - age) .. ARGV[5]
  d = {now, 0, 0, 0, 0, 1, 0, -2, 0, 0, 0, 0, 0, 0}
  for i = 15, 14 + 2 * n + parts do d[i] = 0 end
elseif sub(s, 7, 10) == sub(hot, 7, 10) then
  d = {unp(sub(s, 11))}
else
  return seen('look')
end
local at, expires, skip, rem, last, speed, count, fails, why, top, ids, lead, some, gid = unpack(d, 1, 14)
local old = gid
local big = 9e15
if #d ~= 14 + 2 * n + parts + some * (7 + 3 * n) or not (at > now - 8e12 and at < now + 8e12 and expires >= 0 and skip > -big and skip < big and
    rem >= 0 and rem < big and last >= 0 and last < big and speed >= 0.01 and speed <= 1 and count >= 0 and count < big and fails >= -2 and fails < 1e9 and
    why >= 0 and why < 256 and top >= 0 and top <= ids and ids < big and lead >= 0 and lead < 1e300 and gid >= 0) then
  return seen('cold')
end
rem, last = rem - 1e10, last - 1e8
for i = 1, n do
  level[i], ret[i] = d[13 + 2 * i], d[14 + 2 * i]
  if not (level[i] >= 0 and level[i] < 1e15 and ret[i] < 1e25 and ret[i] > -1e25) then return seen('cold') end
end
local calls, refused, high, per, fast, trust, till = 0, 0, 0, 0, 0, 0, 0
local leaked, over, owed
if some == 1 then
  local p = 15 + 2 * n + parts
  calls, refused, high, per, fast, trust, till = unpack(d, p, p + 6)
  leaked, over, owed = {}, {}, {}
  for i = 1, n do leaked[i], over[i], owed[i] = unpack(d, p + 4 + 3 * i, p + 6 + 3 * i) end
end

local function seconds(ns) -- as time.Duration.Seconds rounds
  local rest = fmod(ns, 1e9)
  return (ns - rest) / 1e9 + rest / 1e9
end
local dial_of, real_of
if speed < 1 or reports > 0 then
  local exp, log = math.exp, math.log
  dial_of = function(d)
    if speed >= 1 or d <= 0 then return d, speed end
    local up, sec = log(1 / speed) / growth, seconds(d)
    if sec < up then
      local g = growth * sec
      local e = g < 1e-3 and g * (1 + g / 2 * (1 + g / 3 * (1 + g / 4 * (1 + g / 5)))) or exp(g) - 1
      return min(d, floor(speed / growth * e * 1e9)), speed * exp(g)
    end
    return max(0, d - ceil((up - (1 - speed) / growth) * 1e9)), 1
  end
  real_of = function(d)
    if speed >= 1 or d <= 0 then return d end
    local sec = seconds(d)
    if sec >= (1 - speed) / growth then return d + ceil((log(1 / speed) / growth - (1 - speed) / growth) * 1e9) + 1 end
    local g = growth * sec / speed
    local e = g < 1e-3 and g * (1 - g * (1 / 2 - g * (1 / 3 - g * (1 / 4 - g * (1 / 5 - g / 6))))) or log(1 + g)
    return max(d, ceil(e / growth * 1e9)) + 1
  end
end

-- The clock.
local ahead, changed, cold, passed = 0, false, false, 0
if high ~= 0 then
  till = min(till, now + 3.6e9)
  if till <= now then calls, refused, high, per, fast, trust, till = 0, 0, 0, 0, 0, 0, 0 end
end
local e = (now - at) * 1e3
if e <= 0 then
  skip = skip + e
  if e >= -1e9 then ahead = at - now else changed = true end
else
  passed = rem > 0 and max(0, e - rem) or e
  if leaked and passed < e then
    local sec = seconds(e - passed)
    for i = 1, n do leaked[i] = max(0, leaked[i] - rate[i] * sec) end
  end
  rem = max(-1e10, rem - e)
  if speed < 1 then passed, speed = dial_of(passed) end
  skip = skip + (e - passed)
  if passed > 0 then
    local sec = seconds(passed)
    for i = 1, n do if kind[i] == 0 then level[i] = max(0, level[i] - rate[i] * sec) end end
    last = max(-1e8, last - passed)
  end
end
if owed and last <= 0 and rem <= 0 then -- no level counts on anything
  for i = 1, n do
    owed[i] = 0
    if level[i] <= cap[i] then over[i] = 0 end
  end
end

-- Limits that are not leaky. Of a window sure is the number of its older slots, gap the end of the
-- first of these, and prev that of the last.
local begin, fin, units, sure, gap, prev, slots, text, slotted, load, look, fill, add, undone, sure_end
if not plain then
  begin, fin, units, sure, gap, prev = {}, {}, {}, {}, {}, {}
  load = function() -- reads all slots of windows: ends and units
    if slots then return end
    local p, from, shift = {}, 3, 0
    if gid > 0 then
      text = text or call('HGET', key, 'g')
      p = {unp(text)}
      shift = (now - gid) * 1e3 - (skip - p[2])
    end
    slots = {}
    for i = 1, n do
      if kind[i] == 1 then
        local list, least = {}, -math.huge
        for j = 1, 2 * sure[i], 2 do
          list[j], list[j + 1], from = p[from] - shift, p[from + 1], from + 2
          if not (list[j] >= least and list[j + 1] >= 0 and list[j + 1] < 1e15) then error('g') end
          least = list[j]
        end
        if units[i] > 0 then list[#list + 1], list[#list + 2] = fin[i], units[i] end
        slots[i] = list
      end
    end
    if gid > 0 and (p[1] ~= gid or from ~= #p + 1) then error('g') end
  end
  sure_end = function(i) -- the end of a fixed window, and whether it began with the call at begin
    local d = skip + max(0, rem) - gap[i]
    if sure[i] == 1 and speed >= 1 and d <= 1e6 and d >= -1e6 then return begin[i] + window[i], 1 end
    return fin[i], 0
  end
  look = function(i)
    if kind[i] == 1 then
      local p, sum = slots[i], 0
      for j = #p - 1, 1, -2 do
        if p[j] <= 0 then break end
        sum = sum + p[j + 1]
      end
      level[i] = sum
    elseif kind[i] == 2 then
      level[i] = sure_end(i) > 0 and units[i] or 0
    end
  end
  -- slot puts units into a new slot, and makes one of the two closest neighbours if there are too many.
  local function slot(p, ends, u)
    p[#p + 1], p[#p + 2] = ends, u
    if #p > 256 then
      local least = 1
      for j = 1, #p - 3, 2 do if p[j + 2] - p[j] < p[least + 2] - p[least] then least = j end end
      p[least + 3] = p[least + 3] + p[least + 1]
      table.remove(p, least)
      table.remove(p, least)
    end
  end
  local function take(p, i, j, u)
    p[j + 1] = p[j + 1] - u
    if p[j + 1] <= cap[i] * 0.5e-9 then
      table.remove(p, j)
      table.remove(p, j)
    end
  end
  -- newest adds to the newest slot, if it counts and stays.
  local function newest(i, more)
    if slots or fin[i] <= 0 or units[i] <= 0 or units[i] + more <= cap[i] * 0.5e-9 then return false end
    units[i], level[i] = units[i] + more, level[i] + more
    return true
  end
  fill = function(i, u, w, times)
    ret[i] = ret[i] + u * times
    if kind[i] == 1 then
      local ends, held = w + window[i], max(0, rem)
      if not slots and sure[i] == 0 and fin[i] <= -held then units[i] = 0 end
      if sure[i] > 0 and gap[i] <= -held then load() end
      local first = units[i] == 0 and sure[i] == 0
      if not slots and (first or units[i] > 0 and (ends <= fin[i] or sure[i] > 0 and ends - prev[i] < floor(window[i] / 64))) then
        if first then fin[i], level[i] = ends, 0 end
        fin[i], units[i], level[i] = max(fin[i], ends), units[i] + u * times, level[i] + u * times
        return
      end
      load()
      local p, gone = slots[i], 1
      while p[gone] and p[gone] <= -held do gone = gone + 2 end
      if gone > 1 then
        p = {unpack(p, gone)}
        slots[i] = p
      end
      local j = #p - 1
      if j > 0 and ends <= p[j] or j > 2 and ends - p[j - 2] < floor(window[i] / 64) then
        p[j], p[j + 1] = max(p[j], ends), p[j + 1] + u * times
        level[i] = level[i] + u * times
      else
        slot(p, ends, u * times)
        look(i)
      end
      slotted = true
    elseif kind[i] == 2 then
      if sure_end(i) <= 0 then
        units[i], begin[i], gap[i], sure[i] = 0, w, skip, w == 0 and rem <= 0 and speed == 1 and 1 or 0
      end
      units[i], fin[i] = units[i] + u * times, max(fin[i], w + window[i])
      local _, is = sure_end(i)
      sure[i] = is
      look(i)
    else
      level[i] = level[i] + u * times
    end
  end
  -- add adds to what a call of due and until has taken, or takes back from it what is safe.
  add = function(i, more, due, known, till)
    if kind[i] == 1 then
      local place = known and due or 0
      local ends, safe = place + window[i], known and place >= begin[i] and place + window[i] > -max(0, rem)
      if more < 0 and not safe or ends <= fin[i] and (sure[i] == 0 or prev[i] < ends) and newest(i, more) then return end
      load()
      local p, j = slots[i], 1
      while p[j] and p[j] < ends do j = j + 2 end
      if more > 0 and p[j] then
        p[j + 1] = p[j + 1] + more
      elseif more > 0 and ends > 0 then
        slot(p, ends, more)
      elseif more < 0 and p[j] then
        take(p, i, j, min(-more, p[j + 1]))
      end
      slotted = true
    elseif kind[i] == 2 then
      if more > 0 then
        units[i], fin[i], sure[i] = units[i] + more, max(fin[i], window[i]), 0
      elseif known and due >= begin[i] then
        units[i] = max(0, units[i] + more)
        if due == begin[i] then sure[i] = 0 end
      end
    else
      local of = till > begin[i] and till <= fin[i]
      if of and known or more > 0 and (of or till == 0) then level[i] = max(0, level[i] + more) end
    end
    look(i)
  end
  undone = function(i, u, due, till)
    if kind[i] ~= 1 or newest(i, -u) then
      ret[i] = ret[i] - u
      if kind[i] ~= 1 then add(i, -u, due, true, till) end
      return
    end
    load()
    if #slots[i] > 0 then
      ret[i], slotted = ret[i] - u, true
      take(slots[i], i, #slots[i] - 1, u)
      look(i)
    end
  end
  local p = 15 + 2 * n
  for i = 1, n do
    if kind[i] > 0 then
      begin[i], fin[i], units[i], sure[i], gap[i], prev[i] = unpack(d, p, p + 5)
      p = p + 6
      if not (begin[i] >= -big and begin[i] < big and fin[i] > -big and fin[i] < big and units[i] >= 0 and units[i] < 1e15 and
          gap[i] > -big and gap[i] < big and sure[i] >= 0 and sure[i] <= 128 and prev[i] > -big and prev[i] < big) then
        return seen('cold')
      end
      if kind[i] < 3 then begin[i], fin[i] = begin[i] - passed, fin[i] - passed end
      if kind[i] == 1 then gap[i], prev[i] = gap[i] - passed, prev[i] - passed end
    end
  end
  for i = 1, n do
    if kind[i] == 1 then
      if sure[i] > 0 and gap[i] <= 0 then
        load()
        look(i)
      elseif sure[i] == 0 and fin[i] <= 0 then
        level[i] = 0
      end
    elseif kind[i] == 2 then
      look(i)
    elseif kind[i] > 2 then
      local b, f, unix = q[pos] * 1e6, q[pos + 1] * 1e6, now + ahead
      if fin[i] > 0 and unix < begin[i] and unix >= begin[i] - 2e6 then unix = begin[i] end
      if unix >= f then b, f = f, q[pos + 2] * 1e6 end
      pos = pos + 3
      if not (unix >= b and unix < f) then return seen('look') end -- Go says that the step is not timely
      if b < begin[i] or f > fin[i] then -- another period
        if begin[i] ~= 0 then sure[i] = 0 end
        if begin[i] ~= 0 and b >= fin[i] then
          level[i] = 0
        elseif begin[i] ~= 0 and f == begin[i] then
          f = fin[i]
        end
        begin[i], fin[i], changed = b, f, true
      end
    end
  end
end

local moved, m = false, 0
if move + reports + backs > 0 then
  local id, back_to, due, before, mine, of_until
  local N, Y, U, used = {}, {}, {}, {}
  local function charge()
    id, back_to, due, before, of_until = unpack(q, pos, pos + 4)
    due, before = (ref - now) * 1e3 + due + skip, (ref - now) * 1e3 + before + skip
    mine = id <= ids -- else it is of another life, or the server has lost it
    for i = 1, n do N[i], Y[i], U[i] = unpack(q, pos + 2 + 3 * i, pos + 4 + 3 * i) end
    pos = pos + 5 + 3 * n
  end
  local function latest() return id == top and mine and due - last <= 2 and last - due <= 2 end
  local function undo()
    if not latest() then return false end
    for i = 1, n do
      if kind[i] == 0 then
        level[i] = max(0, level[i] - N[i] - U[i])
      elseif N[i] > 0 then
        undone(i, N[i], due, of_until)
      end
    end
    top, last, changed = back_to, max(-1e8, before), true
    return true
  end
  local function settle()
    if id < 0 then return end
    for i = 1, n do
      local more = used[i] - N[i]
      if more > 0 then top = 0 end
      if kind[i] > 0 then
        if more ~= 0 then add(i, more, due, mine and Y[i] > -math.huge, of_until) end
      elseif more > 0 then
        level[i] = level[i] + more
      elseif more < 0 and mine then
        local back = Y[i] - ret[i] + rate[i] * seconds(due) - rate[i] * seconds(max(0, last))
        back = min(max(0, back), -more, level[i])
        level[i], ret[i] = level[i] - back, ret[i] + back
      end
    end
  end
  -- hold lets no call leave for d. Of a call, its units have leaked at free.
  local function hold(d, free)
    local held = max(0, rem)
    if d <= held then return false end
    if not plain then load() end
    local l = latest() and max(-1e8, before) or last
    local ext, out, leaks = d - held, l > -1e8, d - held
    if out then leaks = mine and min(max(0, free), ext) or 0 end
    rem, skip, top, changed = d, skip - leaks, 0, true
    if not leaked then
      leaked, over, owed = {}, {}, {}
      for i = 1, n do leaked[i], over[i], owed[i] = 0, 0, 0 end
    end
    if leaks > 0 then
      local sec = seconds(leaks)
      for i = 1, n do
        if kind[i] == 0 then
          local was = level[i]
          level[i] = max(0, was - rate[i] * sec)
          leaked[i] = leaked[i] + (was - level[i])
        end
      end
      last = max(-1e8, last - leaks)
    end
    if out then last = max(last, 1e3) end
    local short -- drains in the shortest time
    for i = 1, n do
      if rate[i] > 0 and (not short or cap[i] * rate[short] < cap[short] * rate[i]) then short = i end
      if kind[i] == 1 or kind[i] == 2 then
        begin[i], fin[i] = begin[i] - leaks, fin[i] - leaks
        if kind[i] == 1 then
          local p, gone = slots[i], -leaks - 1e8
          for j = 1, #p, 2 do
            p[j] = p[j] - leaks
            if p[j] - window[i] < gone then p[j] = p[j] - (ext - leaks) end
          end
          begin[i], slotted = max(begin[i], gone), true
        end
        look(i)
      end
    end
    if short and kind[short] == 0 then
      local room = out and 0 or mine and Y[short] > -math.huge and N[short] or min(1, cap[short])
      level[short] = max(level[short], cap[short] + rate[short] * seconds(max(0, last)) - room)
      ret[short] = ret[short] + level[short]
    end
    return true
  end
  -- steer returns the speed after a refusal that the row has counted already. The end of a row is Go's.
  local function steer(soon)
    local each = calls / refused
    fast = max(fast, speed)
    cold = cold or refused >= 16 or trust > 0 and refused >= 5 and each < per / 5
    if cold or trust > 0 then return speed end
    local least = max(0.5 * high, fast * min(0.4, (per > 0 and per or each) / 150))
    return max(0.01, speed * (soon and 0.7 or 0.9), min(speed, least))
  end

  if move == 1 then
    charge()
    moved = undo()
  end
  if move > 0 and not moved then runs = 0 end
  for _ = 1, reports do
    local report, newest = q[pos], s and q[pos + 1] == count
    if report == 0 then
      pos = pos + 1
      charge()
      for i = 1, n do used[i] = q[pos + i - 1] end
      pos = pos + n
      settle()
      changed = true
    elseif report == 4 then
      pos = pos + 2
      if newest and fails ~= -1 then fails, changed = -1, true end
    else
      local _, d, longest, reason = unpack(q, pos + 1, pos + 4)
      pos = pos + 5
      charge()
      local free, holds = (ref - now) * 1e3 + q[pos] + skip, true
      pos = pos + 1
      if report == 1 and (newest or high > 0) then
        if high == 0 then high = speed end
        refused, till, changed = min(refused + 1, 4095), now + 3.6e9, true
      end
      if report == 1 and newest then
        count = count + 1
        local steers = fails == -1
        fails = fails < 0 and 0 or fails + 1
        if steers then
          speed = steer(rem > -1e10)
          holds = not (trust > 0 and d == 0)
        end
        if fails > 0 or d == 0 then
          local back = longest > 0 and min(3.6e12, longest) or 3.6e12
          if fails < 12 then back = min(back, 1e9 * 2 ^ fails) end
          d = max(d, back)
        end
      end
      if holds and hold(d, free) then why = reason end
    end
  end
  for _ = 1, backs do
    charge()
    if not undo() then
      for i = 1, n do used[i] = 0 end
      settle()
    end
    changed = true
  end
end

if runs > 0 then
  local most, horizon, after, claim, weight = unpack(q, pos, pos + 4)
  pos = pos + 5
  if moved then most = 4.6e18 end
  after = after > 0 and max(0, after - max(0, rem)) or 0
  if speed < 1 and after > 0 then after = dial_of(after) end
  local begins, full, ends, u = claim > lead, false, 0, {}
  local sum = begins and 0 or claim
  local function real(w) return max(0, rem) + (speed < 1 and real_of(w) or w) end
  for _ = 1, runs do
    local left = q[pos]
    for i = 1, n do
      u[i] = q[pos + i]
      full = full or u[i] > cap[i]
    end
    pos = pos + n + 1
    while left > 0 and not full do
      local w, again = max(0, last), true
      if m == 0 then w = max(w, after) end
      while again and not full do -- until no limit makes it later
        again = false
        for i = 1, n do
          local total, fit, at_w = level[i] + u[i], cap[i] * (1 + 0.5e-9), w
          if u[i] == 0 then -- it does not fill it
          elseif kind[i] == 0 then
            local above = total - cap[i]
            if above > 2e-15 * total then
              above = above / rate[i] * 1e9
              if above >= 1 then w = max(w, ceil(above)) end
            end
          elseif kind[i] == 1 and total > fit then
            if not slots then
              w = max(w, sure[i] > 0 and gap[i] or fin[i]) -- at least
              full = full or real(w) > most
              if full then break end
              load()
            end
            local p = slots[i]
            for j = 1, #p, 2 do
              if p[j] > 0 then
                w, total = max(w, p[j]), total - p[j + 1]
                if total <= fit then break end
              end
            end
          elseif kind[i] == 2 then
            local left = sure_end(i)
            full = full or not (left + max(0, rem) <= 0 or total <= fit and w < left - 2e7)
          elseif kind[i] > 2 then
            local unix, after_w = now + ahead, real(w)
            full = full or total > fit or after_w >= (fin[i] - 1e6 - unix) * 1e3
            local early = (begin[i] + 1e6 - unix) * 1e3
            if after_w < early then
              local reach = max(0, early - max(0, rem))
              if speed < 1 then
                reach = dial_of(reach)
                while real(reach) < early do reach = reach + 1 end
              end
              w = max(w, reach)
            end
          end
          again = again or not plain and w > at_w
        end
      end
      local away, more = real(w), 1
      if full or away > most then
        full = true
        break
      end
      local run = w > 0 and seconds(w) or 0
      if left > 1 and w == 0 and rem <= 0 and not (claim > 0) then -- so many leave now for certain
        more = left
        for i = 1, n do
          if u[i] > 0 then more = min(more, floor((cap[i] - level[i]) / u[i]) - 1) end
        end
        more = max(1, more)
      end
      for i = 1, n do
        if u[i] > 0 and kind[i] > 0 then
          fill(i, u[i], w, more)
        elseif u[i] > 0 then
          level[i] = max(level[i], rate[i] * run) + u[i] * more
        end
      end
      ids, last = ids + more, max(last, w)
      if rem > 0 then last = max(last, 1e3) end
      if m == 0 then ends = away + max(1e8, away) end
      most = horizon
      if claim > 0 then
        sum = sum + u[1] / weight
        lead = max(lead, sum)
        if not begins and sum < lead and u[1] > 0 then most = max(most, ends) end
      end
      m, left, top, changed = m + more, left - more, ids, true
    end
  end
  if high > 0 then calls = min(calls + m, 4294967295) end
end
if cold or moved and m == 0 then return seen('cold') end -- a move is not made then

if old > 0 and known ~= old and not text then text = call('HGET', key, 'g') or '' end
local word = pack(s and now - at or now, m, s and (changed and 1 or 2) or 0) .. sub(s or '', changed and 11 or 1) .. (old > 0 and known ~= old and text or '')
if not changed then
  if fence == 1 then -- only the record, so that no earlier step is carried out any more
    call('HSET', key, worker, ARGV[2] .. ' ' .. word)
    if not s then call('PEXPIRE', key, string.format('%.0f', keep / 1e3 + 1)) end
  end
  return pack(prior, 0) .. word
end
local g
if slotted then -- all windows' older slots
  local p = {now, skip}
  for i = 1, n do
    if kind[i] == 1 then
      local list = slots[i]
      local k = #list
      for j = 1, k - 2 do p[#p + 1] = list[j] end
      fin[i], units[i], sure[i], gap[i], prev[i] = list[k - 1] or 0, list[k] or 0, max(0, k / 2 - 1), k > 2 and list[1] or 0, list[k - 3] or 0
    end
  end
  p[1], g, gid = max(now, gid + 1), '', 0
  p[2] = skip + (p[1] - now) * 1e3
  if #p > 2 then gid, g = p[1], pack(unpack(p)) end
end
local w, ends, p = last + 1e8, 0, {}
some = high > 0 and 1 or 0
for i = 1, n do
  p[2 * i - 1], p[2 * i] = level[i], ret[i]
  if kind[i] == 0 then
    w = max(w, level[i] / rate[i] * 1e9)
  elseif kind[i] < 3 then
    w = max(w, fin[i])
  elseif level[i] > 0 then
    ends = max(ends, fin[i] + 1e6 - now)
  end
  if leaked and (leaked[i] > 0 or over[i] > 0 or owed[i] > 0) then some = 1 end
end
for i = 1, n do
  if kind[i] > 0 then
    local k = #p
    p[k + 1], p[k + 2], p[k + 3], p[k + 4], p[k + 5], p[k + 6] = max(begin[i], -8e15), fin[i], units[i], sure[i], gap[i], prev[i]
  end
end
if some == 1 then
  local k = #p
  p[k + 1], p[k + 2], p[k + 3], p[k + 4], p[k + 5], p[k + 6], p[k + 7] = calls, refused, high, per, fast, trust, till
  for i = 1, n do
    k = #p
    p[k + 1], p[k + 2], p[k + 3] = leaked and leaked[i] or 0, over and over[i] or 0, owed and owed[i] or 0
  end
end
local need = max(0, rem) + (speed < 1 and max(real_of(w), -math.log(speed) / growth * 1e9) or w)
need = max(max(need, rem + 1e10) / 1e3, ends)
if high > 0 then need = max(need, till - now) end
need = need + ahead
local ttl
if not (expires * 1e6 >= now + need + keep / 2 and expires < 9e9) then
  ttl = min(need * 1.25, need + 8.64e10) + keep
  expires, ttl = floor((now + ttl) / 1e6), string.format('%.0f', ttl / 1e3 + 1)
end
write(sub(hot, 1, 6) .. (s and sub(hot, 7, 10) or sub(hot, 1, 4)) .. pack(now + ahead, expires, skip + ahead * 1e3, rem + 1e10, last + 1e8, speed, count, fails, why,
  top, ids, lead, some, gid, unpack(p)), ARGV[2] .. ' ' .. word, made, g, ttl)
return pack(prior, 1) .. word
