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
--         if one is not leaky, the opening: at, to (of the dial), bids, calls, done, took; 0 if there is none;
--         the row: calls, refused, top, per, fast, trust, until; of each limit leaked, over, owed
--   g     only if a window has older slots: gid, skip then, and ends and units of all of them
--   v, u  born, made, and what hot steps do not change, for Go; u is what is beyond 64 bytes of v
--   l     lock: µs until which the key waits for a swap, a space, the field of its process
--   w…    a process's last step: seq, a space, then numbers: now less at, calls booked (-1: a
--         swap), whether there was a key, then s from at on as it was, and g if it did not know it
--
-- ARGV: 1 the name of the process's field  2 seq  3 clock (µs, at most what the server's clock
--       shows; 0: not known)  4 nothing, or a hot step
--       hot: 5 v of a key that is to be made, less born and made  6 the process's step that was last
--       on record. Swap: 5 the first bytes of s that were read  6 s, nothing if nothing is to be
--       written  7 v  8 g  9 for how many ms the server keeps the key  10 reserve (µs)
-- A hot step is token, edition, then an array of numbers: fence, keep (µs), age (µs), gid that is
-- known, ref (µs), n, move (0 none, 1 undo, 2 book nothing), reports, backs, runs; capacity, rate,
-- kind and window of each limit; begin, end and next of each calendar's period, in seconds; the
-- charge of the move; the reports; the backs; and if there are runs wait, horizon, after, claim,
-- weight, headroom; the process's bid, if a limit is not leaky: at less (ref - born), calls, 1 if it is
-- done + 2 if it has left + 4 if no more calls wait; the runs.
--   charge: id (-1: settled; 1e17: of another life, or none), prev, place and before less (ref -
--           born), until (µs), of each limit N, Y (-inf: nothing can be returned), Up
--   report: 0 settled: charge, Used of each limit. 1 refused, 2 held: epoch less that of v, wait,
--           longest wait, reason, charge and when it is free. 4 succeeded: epoch less that of v
--   run: how many calls, and what each costs of each limit
local floor, ceil, min, max, sub, call = math.floor, math.ceil, math.min, math.max, string.sub, redis.call
local lib, key, worker, seq, hot = rawget(_G, 'cmsgpack'), KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[4]
local got, t = redis.pcall('HMGET', key, 's', worker, 'l'), call('TIME')
local now = t[1] * 1e6 + t[2]
local s, r, lock = got[1], got[2], got[3]
if got.err and not string.match(got.err, 'WRONGTYPE ') then return got end -- a missing right, for example: the key may be sound
if got.err then s = 'wrong type' elseif s == '' then s = 'nothing' end
local prior = r and tonumber((string.match(r, '^%d+'))) or 0 -- the process's last step on record
if prior == seq then return {'again', now, prior, r} end -- a step is carried out once
if prior > seq then return {'old', now, prior} end
local word, value, record, v, g, ttl = 'look', nil, nil, '', nil, nil

repeat
  local clock = tonumber(ARGV[3])
  if not hot then break end
  if clock > 0 and (clock > now or clock < now - 1e6) then
    word = 'late'
    break
  end
  if lock then
    local till = tonumber((string.match(lock, '^%d+'))) or 0
    if till > now and till <= now + 1e6 and sub(lock, -#worker) ~= worker then return {'busy', now, prior, till - now} end
  end

  if hot == '' then -- a swap
    local was = ARGV[5]
    if was == '' and s or was ~= '' and sub(s or '', 1, #was) ~= was then -- another process was first
      if s and not got.err then call('HSET', key, 'l', string.format('%.0f ', now + ARGV[10]) .. worker) end
      break
    end
    if ARGV[6] == '' then return {'same', now, prior} end
    word, value, v, g, ttl = {'done', now, prior}, ARGV[6], ARGV[7], ARGV[8], ARGV[9]
    record = ARGV[2] .. ' ' .. (lib and lib.pack(now, -1) or '')
    break
  end

  if prior > 0 and prior < (tonumber(ARGV[6]) or 0) then return {'lost', now, prior} end -- charges may have other calls' ids
  if not lib then
    word = 'bare'
    break
  end
  -- Of limit i, q has the capacity at 4i + 7, then rate, kind, window; d has the level at 2i + 13, then ret.
  local pack, unp, fmod, big = lib.pack, lib.unpack, math.fmod, 9e15
  local q, d = unp(sub(hot, 11)), nil
  local fence, keep, age, known, ref, n, move, reports, backs, runs = unpack(q, 1, 10)
  local pos, plain, size = 11 + 4 * n, true, 14 + 2 * n -- in q; all are leaky; of d
  for c = 13, 4 * n + 9, 4 do
    if q[c] > 0 then plain, size = false, size + 6 end
  end
  if not plain then size = size + 6 end
  if not s then
    if ARGV[5] == '' then return {'missing', now, prior} end
    v = pack(now, now - age) .. ARGV[5]
    d = {now, 0, 0, 0, 0, 1, 0, -2, 0, 0, 0, 0, 0, 0}
    for i = 15, size do d[i] = 0 end
  elseif sub(s, 7, 10) == sub(hot, 7, 10) then
    d = {unp(sub(s, 11))}
  else
    break
  end
  local at, expires, skip, rem, last, speed, count, fails, why, top, ids, lead, some, gid = unpack(d, 1, 14)
  local old, sound = gid, #d == size + some * (7 + 3 * n) and at > now - 8e12 and at < now + 8e12 and expires >= 0 and skip > -big and skip < big and
    rem >= 0 and rem < big and last >= 0 and last < big and speed >= 0.01 and speed <= 1 and count >= 0 and count < big and fails >= -2 and fails < 1e9 and
    why >= 0 and why < 256 and top >= 0 and top <= ids and ids < big and lead >= 0 and lead < 1e300 and gid >= 0
  for l = 15, 13 + 2 * n, 2 do sound = sound and d[l] >= 0 and d[l] < 1e15 and d[l + 1] < 1e25 and d[l + 1] > -1e25 end
  local opening
  if not plain then
    opening = {unpack(d, size - 5, size)}
    sound = sound and #opening == 6 and opening[1] > -big and opening[1] < big and opening[2] > -big and opening[2] < big
    for k = 3, 6 do sound = sound and opening[k] >= 0 and opening[k] < 1e300 end
  end
  for k = 15 + 2 * n, size - 6, 6 do
    sound = sound and d[k] >= -big and d[k] < big and d[k + 1] > -big and d[k + 1] < big and d[k + 2] >= 0 and d[k + 2] < 1e15 and
      d[k + 3] >= 0 and d[k + 3] <= 128 and d[k + 4] > -big and d[k + 4] < big and d[k + 5] > -big and d[k + 5] < big
  end
  if not sound then
    word = 'cold'
    break
  end
  rem, last = rem - 1e10, last - 1e8
  local calls, refused, high, per, fast, trust, till = 0, 0, 0, 0, 0, 0, 0
  local marks -- of each limit leaked, over, owed; nil if all are 0
  if some == 1 then
    calls, refused, high, per, fast, trust, till = unpack(d, size + 1, size + 7)
    marks = {unpack(d, size + 8)}
  end

  local function seconds(ns) -- as time.Duration.Seconds rounds
    local rest = fmod(ns, 1e9)
    return (ns - rest) / 1e9 + rest / 1e9
  end
  local dial_of, real_of
  if speed < 1 or reports > 0 then
    local exp, log = math.exp, math.log
    local growth = 0.0015885029967387489 -- ln 1.1 / 60, per second: a slow clock speeds up by 10 % a minute
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
  local ahead, changed, passed, m = 0, false, 0, 0
  local e = (now - at) * 1e3
  if e <= 0 then
    skip = skip + e
    if e >= -1e9 then ahead = at - now else changed = true end
  else
    passed = rem > 0 and max(0, e - rem) or e
    if marks and passed < e then
      local sec = seconds(e - passed)
      for i = 1, n do marks[3 * i - 2] = max(0, marks[3 * i - 2] - q[4 * i + 8] * sec) end
    end
    rem = max(-1e10, rem - e)
    if marks and rem <= 0 then
      for i = 1, n do marks[3 * i - 2] = 0 end -- real time has caught up
    end
    if speed < 1 then passed, speed = dial_of(passed) end
    skip = skip + (e - passed)
    if passed > 0 then
      local sec = seconds(passed)
      for i = 1, n do if q[4 * i + 9] == 0 then d[2 * i + 13] = max(0, d[2 * i + 13] - q[4 * i + 8] * sec) end end
      last = max(-1e8, last - passed)
    end
  end
  if high ~= 0 then
    till = min(till, now + floor(max(0, rem) / 1e3) + 3.6e9)
    if till <= now then calls, refused, high, per, fast, trust, till = 0, 0, 0, 0, 0, 0, 0 end
  end
  if high == 0 and fails > -1 then fails = -2 end
  if marks and last <= 0 and rem <= 0 then -- no level counts on anything
    for i = 1, n do
      marks[3 * i] = 0
      if d[2 * i + 13] <= q[4 * i + 7] then marks[3 * i - 1] = 0 end
    end
  end

  -- Limits that are not leaky. Of a window sure is the number of its older slots, gap the end of the
  -- first of these, and prev that of the last.
  local begin, fin, units, sure, gap, prev, slots, text, slotted, load, look, slot, fill, sure_end, void
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
        if q[4 * i + 9] == 1 then
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
      if sure[i] == 1 and speed >= 1 and d <= 1e6 and d >= -1e6 then return begin[i] + q[4 * i + 10], 1 end
      return fin[i], 0
    end
    look = function(i) -- sets the level
      local p, sum = slots and slots[i], 0
      if q[4 * i + 9] == 2 then
        sum = sure_end(i) > 0 and units[i] or 0
      elseif p then
        for j = #p - 1, 1, -2 do
          if p[j] <= 0 then break end
          sum = sum + p[j + 1]
        end
      else
        sum = d[2 * i + 13]
      end
      d[2 * i + 13] = sum
    end
    -- slot puts units into a new slot at j, and makes one of the two closest neighbours if there are too many.
    slot = function(p, j, ends, u)
      table.insert(p, j, u)
      table.insert(p, j, ends)
      if #p > 256 then
        local least = 1
        for j = 1, #p - 3, 2 do if p[j + 2] - p[j] < p[least + 2] - p[least] then least = j end end
        p[least + 3] = p[least + 3] + p[least + 1]
        table.remove(p, least)
        table.remove(p, least)
      end
    end
    fill = function(i, u, w)
      local kind, window, l = q[4 * i + 9], q[4 * i + 10], 2 * i + 13
      local ends, held = w + window, max(0, rem)
      d[l + 1] = d[l + 1] + u
      if kind == 2 then
        if sure_end(i) <= 0 then
          units[i], begin[i], gap[i], sure[i] = 0, w, skip, w == 0 and rem <= 0 and speed == 1 and 1 or 0
        end
        units[i], fin[i] = units[i] + u, max(fin[i], ends)
        local _, is = sure_end(i)
        sure[i] = is
        return look(i)
      elseif kind == 1 then
        if not slots and sure[i] == 0 and fin[i] <= -held then units[i], fin[i], d[l] = 0, ends, 0 end
        if sure[i] > 0 and gap[i] <= -held then load() end
        local near, older = floor(window / 64), sure[i] > 0
        local joins = ends <= fin[i] and fin[i] - ends < near or ends > fin[i] and older and ends - prev[i] < near -- the newest slot
        joins = units[i] > 0 and joins and (not older or prev[i] < ends) or units[i] == 0 and not older
        if slots or not joins then
          load()
          local p, gone = slots[i], 1
          while p[gone] and p[gone] <= -held do gone = gone + 2 end
          if gone > 1 then
            p = {unpack(p, gone)}
            slots[i] = p
          end
          local j = #p + 1
          while j > 1 and p[j - 2] >= ends do j = j - 2 end
          slotted = true
          if not (p[j] and p[j] - ends < near) then
            if not (j > 4 and ends - p[j - 4] < near) then
              slot(p, j, ends, u)
              return look(i)
            end
            j = j - 2
            p[j] = ends
          end
          p[j + 1] = p[j + 1] + u
        else
          fin[i], units[i] = max(fin[i], ends), units[i] + u
        end
      end
      d[l] = d[l] + u
    end
    local k, from = 15 + 2 * n, 11 + 4 * n
    if opening[3] > 0 then opening[1], opening[2] = opening[1] - passed, opening[2] - passed end
    pos = from
    for i = 1, n do
      local kind = q[4 * i + 9]
      if kind > 0 then
        begin[i], fin[i], units[i], sure[i], gap[i], prev[i] = unpack(d, k, k + 5)
        k = k + 6
      end
      if kind == 1 then
        begin[i], fin[i], gap[i], prev[i] = begin[i] - passed, fin[i] - passed, gap[i] - passed, prev[i] - passed
        if sure[i] == 0 and fin[i] <= 0 then d[2 * i + 13] = 0 end
        void = void or fin[i] - max(0, last) > q[4 * i + 10] * 65 / 64
      elseif kind == 2 then
        begin[i], fin[i] = begin[i] - passed, fin[i] - passed
        look(i)
      elseif kind > 2 then
        local b, f, unix = q[pos] * 1e6, q[pos + 1] * 1e6, now + ahead
        if fin[i] > 0 and unix < begin[i] and unix >= begin[i] - 2e6 then unix = begin[i] end
        if unix >= f then b, f = f, q[pos + 2] * 1e6 end
        pos = pos + 3
        sound = sound and unix >= b and unix < f
        if b < begin[i] or f > fin[i] then -- another period
          if begin[i] ~= 0 then sure[i] = 0 end
          if begin[i] ~= 0 and b >= fin[i] then
            d[2 * i + 13] = 0
          elseif begin[i] ~= 0 and f == begin[i] then
            f = fin[i]
          end
          begin[i], fin[i], changed = b, f, true
        end
      end
    end
    if void then word = 'cold' end -- the newest slot is not that of the last call, but has void reservations
    if void or not sound then break end -- Go says that the step is not timely
    for i = 1, n do
      if q[4 * i + 9] == 1 and sure[i] > 0 and gap[i] <= 0 then -- a slot has ended
        load()
        look(i)
      end
    end
  end

  local moved = false
  if move + reports + backs > 0 then
    local c, due, before, mine, newest, add, undone -- c: where the charge is, in q
    if not plain then
      local function take(p, i, j, u)
        p[j + 1] = p[j + 1] - u
        if p[j + 1] <= q[4 * i + 7] * 0.5e-9 then
          table.remove(p, j)
          table.remove(p, j)
        end
      end
      newest = function(i, more) -- adds to the newest slot, if it counts and stays
        if slots or fin[i] <= 0 or units[i] <= 0 or units[i] + more <= q[4 * i + 7] * 0.5e-9 then return false end
        units[i], d[2 * i + 13] = units[i] + more, d[2 * i + 13] + more
        return true
      end
      -- add adds to what the call has taken, or takes back from it what is safe.
      add = function(i, more, known)
        local kind, window, l = q[4 * i + 9], q[4 * i + 10], 2 * i + 13
        if kind == 1 then
          local place = known and due or 0
          local ends, safe = place + window, known and place >= begin[i] and place + window > -max(0, rem)
          local near = known and math.huge or floor(window / 64) -- an unknown call leaves now
          if more < 0 and not safe or ends <= fin[i] and fin[i] - ends < near and (sure[i] == 0 or prev[i] < ends) and newest(i, more) then return end
          load()
          local p, j = slots[i], 1
          while p[j] and p[j] < ends do j = j + 2 end
          if more > 0 and p[j] and p[j] - ends < near then
            p[j + 1] = p[j + 1] + more
          elseif more > 0 and ends > 0 then
            slot(p, j, ends, more)
          elseif more < 0 and p[j] then
            take(p, i, j, min(-more, p[j + 1]))
          end
          slotted = true
        elseif kind == 2 then
          if more > 0 then
            units[i], fin[i], sure[i] = units[i] + more, max(fin[i], window), 0
          elseif known and due >= begin[i] then
            units[i] = max(0, units[i] + more)
            if due == begin[i] then sure[i] = 0 end
          end
        else
          local till = q[c + 4]
          local of = till > begin[i] and till <= fin[i]
          if of and known or more > 0 and (of or till == 0) then d[l] = max(0, d[l] + more) end
        end
        look(i)
      end
      undone = function(i, u)
        local l = 2 * i + 14
        if q[4 * i + 9] ~= 1 then
          d[l] = d[l] - u
          add(i, -u, true)
        elseif (sure[i] == 0 or prev[i] < due + q[4 * i + 10]) and newest(i, -u) then
          d[l] = d[l] - u
        else
          load()
          local p = slots[i]
          if #p > 0 then
            local j = #p - 1
            while j > 2 and p[j - 2] >= due + q[4 * i + 10] do j = j - 2 end
            d[l], slotted = d[l] - u, true
            take(p, i, j, u)
            look(i)
          end
        end
      end
    end
    local function charge()
      c, pos = pos, pos + 5 + 3 * n
      due, before = (ref - now) * 1e3 + q[c + 2] + skip, (ref - now) * 1e3 + q[c + 3] + skip
      mine = q[c] <= ids -- else it is of another life, or the server has lost it
    end
    local function latest() return q[c] == top and mine and due - last <= 2 and last - due <= 2 end
    local function undo()
      if not latest() then return false end
      for i = 1, n do
        local N, l = q[c + 2 + 3 * i], 2 * i + 13
        if q[4 * i + 9] == 0 then
          d[l] = max(0, d[l] - N - q[c + 4 + 3 * i])
        elseif N > 0 then
          undone(i, N)
        end
      end
      top, last, changed = q[c + 1], max(-1e8, before), true
      return true
    end
    local function settle(used) -- used: where the costs are, in q; nil: there were none
      for i = 1, q[c] < 0 and 0 or n do
        local l, Y = 2 * i + 13, q[c + 3 + 3 * i]
        local more = (used and q[used + i] or 0) - q[c + 2 + 3 * i]
        if more > 0 then top = 0 end
        if more ~= 0 and q[4 * i + 9] > 0 then
          add(i, more, mine and Y > -math.huge)
        elseif more > 0 then
          d[l] = d[l] + more
        elseif more < 0 and mine then
          local rate = q[4 * i + 8]
          local back = Y - d[l + 1] + rate * seconds(due) - rate * seconds(max(0, last))
          back = min(max(0, back), -more, d[l])
          d[l], d[l + 1] = d[l] - back, d[l + 1] + back
        end
      end
      changed = true
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
        settle(pos - 1)
        pos = pos + n
      elseif report == 4 then
        pos = pos + 2
        if newest and fails ~= -1 then fails, changed = -1, true end
      else
        local _, longed, longest, reason = unpack(q, pos + 1, pos + 4)
        local holds = true
        pos = pos + 5
        charge()
        local free = (ref - now) * 1e3 + q[pos] + skip
        pos = pos + 1
        if report == 1 and (newest or high > 0) then
          if high == 0 then high = speed end
          refused, till, changed = min(refused + 1, 4095), max(till, now + 3.6e9), true
        end
        if report == 1 and newest then
          count = count + 1
          if fails == -1 then -- the speed
            local each = calls / refused
            fast = max(fast, speed)
            if refused >= 16 or trust > 0 and refused >= 5 and each < per / 5 then sound = false end -- the end of a row is Go's
            if trust <= 0 then
              local least = max(0.5 * high, fast * min(0.4, (per > 0 and per or each) / 150))
              speed = max(0.01, speed * (rem > -1e10 and 0.7 or 0.9), min(speed, least))
            end
            holds = not (trust > 0 and longed == 0)
          end
          fails = max(0, fails + 1)
          if fails > 0 or longed == 0 then
            local back = longest > 0 and min(3.6e12, longest) or 3.6e12
            longed = max(longed, fails < 12 and min(back, 1e9 * 2 ^ fails) or back)
          end
        end
        local held = max(0, rem)
        if holds and longed > held then -- hold: no call leaves for so long
          if not plain then load() end
          local l = latest() and max(-1e8, before) or last
          local ext, out, leaks = longed - held, l > -1e8, longed - held
          if out then leaks = mine and min(max(0, free), ext) or 0 end
          rem, skip, top, why, changed = longed, skip - leaks, 0, reason, true
          if not marks then
            marks = {}
            for i = 1, 3 * n do marks[i] = 0 end
          end
          last = max(-1e8, last - leaks)
          if not plain and opening[3] > 0 then opening[1], opening[2] = opening[1] - leaks, opening[2] - leaks end
          if out then last = max(last, 1e3) end
          local short -- the rate of the limit that drains in the shortest time is q[short]
          for i = 1, n do
            local a, l, window = 4 * i + 8, 2 * i + 13, q[4 * i + 10]
            if q[a] > 0 and (not short or q[a - 1] * q[short] < q[short - 1] * q[a]) then short = a end
            if q[a + 1] == 0 then
              local was = d[l]
              d[l] = max(0, was - q[a] * seconds(leaks))
              marks[3 * i - 2] = marks[3 * i - 2] + (was - d[l])
            elseif q[a + 1] == 1 or q[a + 1] == 2 then
              begin[i], fin[i] = begin[i] - leaks, fin[i] - leaks
              if q[a + 1] == 1 then
                sound = sound and last <= 1e9 -- what is reserved for later is void then, which is Go's
                local p, gone = slots[i], -leaks - 1e8
                for j = 1, #p, 2 do
                  p[j] = p[j] - leaks
                  if p[j] - window < gone then p[j] = p[j] - (ext - leaks) end
                end
                begin[i], slotted = max(begin[i], gone), true
              end
              look(i)
            end
          end
          if short and q[short + 1] == 0 then
            local i = short / 4 - 2
            local k = 2 * i + 13
            local room = out and 0 or mine and q[c + 3 + 3 * i] > -math.huge and q[c + 2 + 3 * i] or min(1, q[short - 1])
            d[k] = max(d[k], q[short - 1] + q[short] * seconds(max(0, last)) - room)
            d[k + 1] = d[k + 1] + d[k]
          end
        end
        if holds and report == 1 and high > 0 then till = max(till, now + floor(max(0, rem) / 1e3) + 3.6e9) end
      end
    end
    for _ = 1, backs do
      charge()
      if not undo() then settle() end
    end
  end

  if runs > 0 then
    local most, horizon, after, claim, weight, headroom = unpack(q, pos, pos + 5)
    pos = pos + 6
    local shares, admits, before = not plain and weight > 0 and move == 0 and headroom <= 0, nil, nil
    weight = weight > 0 and min(max(weight, 1e-9), 1e9) or 1
    if not plain then
      local o, part = opening, weight
      local bid, mine, flags, keeps = (ref - now) * 1e3 + q[pos] + skip, q[pos + 1], q[pos + 2], 1e8
      local done, left, ends = flags % 2 == 1, flags % 4 > 1, flags > 3
      pos, before = pos + 3, {unpack(o)}
      for i = 1, n do
        local kind, window = q[4 * i + 9], q[4 * i + 10]
        if kind == 1 or kind == 2 then keeps = min(keeps, max(1, floor(window / (kind == 1 and 200 or 10)))) end
      end
      local function clear() for k = 1, 6 do o[k] = 0 end end
      local function count(sign)
        o[3], o[4] = o[3] + sign * part, max(0, o[4] + sign * mine)
        if done then o[5], o[6] = max(0, o[5] + sign * part), max(0, o[6] + sign * mine) end
        if o[3] <= 1e-9 * part then clear() end
      end
      -- admits reports whether the shares let a call leave at w: see opening.go.
      admits = function(w, which, booked, far, final)
        local waits = w > 0 and which > 0 and q[4 * which + 9] > 0
        local later = waits and w >= o[2] + keeps
        if o[3] == 0 or w < o[1] - 2e6 or later and w >= o[1] + floor(q[4 * which + 10] / 16) or not later and o[2] + keeps <= 0 then
          clear()
          if not waits then return booked end
          o[1], o[2], mine, done, left = w, w, 0, false, true
        elseif later then
          o[2] = w
        end
        if bid - o[1] > 1e3 or o[1] - bid > 1e3 then bid, mine, done, left = o[1], 0, false, true end
        if left then
          left = false
          count(1)
        end
        o[3] = max(o[3], part)
        local free = math.huge
        for i = 1, n do
          local u, kind = q[pos + i], q[4 * i + 9]
          if u > 0 and kind > 0 then
            local used = booked and kind ~= 1 and d[2 * i + 13] or 0
            if booked and kind == 1 then
              load()
              for j = 1, #slots[i], 2 do if slots[i][j] > w then used = used + slots[i][j + 1] end end
            end
            free = min(free, max(0, q[4 * i + 7] - used) / u)
          end
        end
        local all = min(free, 1e15) + o[4]
        local share = all * part / o[3] - mine
        local ok = mine == 0 or o[3] - part <= 1e-9 * part
        if done then
          ok = ok or share >= 1 - 1e-9 or share > 1e-9 and o[2] <= 2e6
        else
          ok = ok or share > 1e-9 and floor(all * (o[5] + part) / o[3] + 1e-9) - o[6] - mine >= 1
        end
        if not booked or far and all > 8 then return false end
        if ok then
          mine, o[4] = mine + 1, o[4] + 1
          if done then o[6] = o[6] + 1 end
          if final and ends then
            left = true
            count(-1)
          end
        elseif not done then
          done, o[5], o[6] = true, o[5] + part, o[6] + mine
        end
        return ok
      end
    end
    if moved then most = 4.6e18 end
    after = after > 0 and max(0, after - max(0, rem)) or 0
    if speed < 1 and after > 0 then after = dial_of(after) end
    local begins, full, ends = claim > lead, false, 0
    local sum = begins and 0 or claim
    for run = 1, runs do
      local left = q[pos]
      local needs = {} -- what has to be free, with the headroom
      for i = 1, n do
        local u, cap = q[pos + i], q[4 * i + 7]
        if headroom > 0 and u > 0 then u = u + floor(cap * headroom + 1e-9) end
        needs[i], full = u, full or u > cap
      end
      while left > 0 and not full do
        local w, again, more, which, booked = max(0, last), true, 1, 0, true
        if m == 0 then w = max(w, after) end
        while again and not full do -- until no limit makes it later
          again = false
          for i = 1, n do
            local u, cap, kind, at_w = needs[i], q[4 * i + 7], q[4 * i + 9], w
            local total, fit = d[2 * i + 13] + u, cap * (1 + 0.5e-9)
            if u == 0 then -- it does not fill it
            elseif kind == 0 then
              local above = total - cap
              if above > 2e-15 * total then
                above = above / q[4 * i + 8] * 1e9
                if above >= 1 then w = max(w, ceil(above)) end
              end
            elseif kind == 1 and total > fit then
              if not slots then
                local least = max(w, sure[i] > 0 and gap[i] or fin[i])
                full = full or max(0, rem) + (speed < 1 and real_of(least) or least) > most
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
            elseif kind == 2 then
              local left = sure_end(i)
              if not (left + max(0, rem) <= 0 or total <= fit and w < left - 2e7) then
                if shares then w, booked = max(w, left), false else full = true end
              end
            elseif kind > 2 then
              local unix, real = now + ahead, max(0, rem) + (speed < 1 and real_of(w) or w)
              local early = (begin[i] + 1e6 - unix) * 1e3
              if total > fit or real >= (fin[i] - 1e6 - unix) * 1e3 then
                early = (fin[i] + 1e6 - unix) * 1e3
                booked, full = false, full or not shares or early > most
                sound = sound and (full or early < big) -- beyond that ns are Go's
                if not sound then full = true end
              end
              if real < early and not full then
                local reach = max(0, early - max(0, rem))
                if speed < 1 then
                  reach = dial_of(reach)
                  while max(0, rem) + real_of(reach) < early do reach = reach + 1 end
                end
                w = max(w, reach)
              end
            end
            if w > at_w then which = i end
            again = again or not plain and w > at_w
          end
        end
        local real = max(0, rem) + (speed < 1 and real_of(w) or w)
        full = full or real > most
        if full or shares and not admits(w, which, booked, m > 0 and real > horizon, run == runs and left == 1 and real <= horizon) then
          full = true
          break
        end
        if not shares and left > 1 and w == 0 and rem <= 0 and not (claim > 0) then -- so many leave now for certain
          more = left
          for i = 1, n do
            local u = q[pos + i]
            if u > 0 then more = min(more, floor((q[4 * i + 7] - needs[i] + u - d[2 * i + 13]) / u) - 1) end
          end
          more = max(1, more)
        end
        local sec = w > 0 and seconds(w) or 0
        for i = 1, n do
          local u, l = q[pos + i] * more, 2 * i + 13
          if u > 0 and q[4 * i + 9] > 0 then
            fill(i, u, w)
          elseif u > 0 then
            d[l] = max(d[l], q[4 * i + 8] * sec) + u
          end
        end
        ids, last = ids + more, max(last, w)
        if rem > 0 then last = max(last, 1e3) end
        if m == 0 then ends = real + max(1e8, real * max(4, weight)) end
        most = horizon
        if claim > 0 then
          sum = sum + q[pos + 1] / weight
          lead = max(lead, sum)
          if not begins and q[pos + 1] > 0 and sum + q[pos + 1] / weight <= lead then most = max(most, ends) end
        end
        m, left, top, changed = m + more, left - more, ids, true
      end
      pos = pos + n + 1
    end
    for k = 1, before and 6 or 0 do changed = changed or before[k] ~= opening[k] end
    if high > 0 then calls = min(calls + m, 4294967295) end
  end
  if not sound or moved and m == 0 then -- a move is not made then
    word = 'cold'
    break
  end

  local needs = old > 0 and known ~= old
  if needs and not text then text = call('HGET', key, 'g') or '' end
  record = pack(s and now - at or now, m, s and (changed and 1 or 2) or 0) .. sub(s or '', changed and 11 or 1) .. (needs and text or '')
  word, record = pack(prior, changed and 1 or 0) .. record, ARGV[2] .. ' ' .. record
  if not changed then
    if fence == 1 then -- only the record, so that no earlier step is carried out any more
      local most = string.format('%.0f', keep / 1e3 + 1)
      call('HSET', key, worker, record)
      if not s then call('PEXPIRE', key, most) end
    end
    return word
  end
  if slotted then -- all windows' older slots
    local p = {max(now, gid + 1), 0}
    p[2] = skip + (p[1] - now) * 1e3
    for i = 1, n do
      if q[4 * i + 9] == 1 then
        local list = slots[i]
        local k = #list
        for j = 1, k - 2 do p[#p + 1] = list[j] end
        fin[i], units[i], sure[i], gap[i], prev[i] = list[k - 1] or 0, list[k] or 0, max(0, k / 2 - 1), k > 2 and list[1] or 0, list[k - 3] or 0
      end
    end
    gid, g = 0, ''
    if #p > 2 then gid, g = p[1], pack(unpack(p)) end
  end
  local w, full_at, k = last + 1e8, 0, 15 + 2 * n
  some = high > 0 and 1 or 0
  for i = 1, n do
    local kind, level = q[4 * i + 9], d[2 * i + 13]
    if kind == 0 then
      w = max(w, level / q[4 * i + 8] * 1e9)
    else
      d[k], d[k + 1], d[k + 2], d[k + 3], d[k + 4], d[k + 5] = max(begin[i], -8e15), fin[i], units[i], sure[i], gap[i], prev[i]
      k = k + 6
      if kind < 3 then
        w = max(w, fin[i])
      elseif level > 0 then
        full_at = max(full_at, fin[i] + 1e6 - now)
      end
    end
  end
  for j = 1, plain and 0 or 6 do d[k + j - 1] = opening[j] end
  if marks then
    for i = 1, 3 * n do
      if marks[i] > 0 then some = 1 end
    end
  end
  if some == 1 then
    k = size
    d[k + 1], d[k + 2], d[k + 3], d[k + 4], d[k + 5], d[k + 6], d[k + 7] = calls, refused, high, per, fast, trust, till
    for i = 1, 3 * n do d[k + 7 + i] = marks and marks[i] or 0 end
    size = k + 7 + 3 * n
  end
  local need = max(0, rem) + (speed < 1 and max(real_of(w), math.log(1 / speed) / 0.0015885029967387489 * 1e9) or w)
  need = max(max(need, rem + 1e10) / 1e3, full_at)
  if high > 0 then need = max(need, till - now) end
  need = need + ahead
  if not (expires * 1e6 >= now + need + keep / 2 and expires < 9e9) then
    ttl = min(need * 1.25, need + 8.64e10) + keep
    expires, ttl = floor((now + ttl) / 1e6), string.format('%.0f', ttl / 1e3 + 1)
  end
  value = sub(hot, 1, 6) .. (s and sub(hot, 7, 10) or sub(hot, 1, 4)) .. pack(now + ahead, expires, skip + ahead * 1e3, rem + 1e10, last + 1e8, speed,
    count, fails, why, top, ids, lead, some, gid, unpack(d, 15, size))
until true

if not value then
  local f = got.err and {} or call('HMGET', key, 'v', 'u', 'g')
  return {word, now, prior, s or '', (f[1] or '') .. (f[2] or ''), f[3] or ''}
end
-- A command that is missing, or that this program has no right for, fails before anything is lost.
local gone = {}
if not r and lib and not got.err and call('HLEN', key) > 1000 then -- forget the processes that have not used the key for the longest
  local all, times = call('HGETALL', key), {}
  for i = 1, #all, 2 do
    if #all[i] > 1 then
      local p = {pcall(lib.unpack, (string.gsub(all[i + 1], '^%d+ ', '')))}
      times[#times + 1] = {(tonumber(p[2]) or 0) + (tonumber(p[5]) or 0), all[i]}
    end
  end
  table.sort(times, function(a, b) return a[1] < b[1] end)
  for i = 1, #times - 768 do gone[i] = times[i][2] end
end
if g == '' and s then gone[#gone + 1] = 'g' end
if lock then gone[#gone + 1] = 'l' end
if got.err then
  local e = redis.pcall('HSET', key, worker, record, '').err -- this and the next fail always
  if string.match(e, 'rong number') then e = redis.pcall('PEXPIRE', key, 'none').err end
  if not string.match(e, 'not an integer') then return {err = e} end
  call('DEL', key)
elseif ttl or #gone > 0 then
  if got[1] then call('HSET', key, 's', s) else call('HSET', key, worker, '0') end -- first, because it needs memory
  local e = ttl and redis.pcall('PEXPIRE', key, ttl)
  if e and type(e) == 'table' and e.err then
    if not got[1] and not r then redis.pcall('HDEL', key, worker) end
    return e
  end
  for i = 1, #gone do call('HDEL', key, gone[i]) end
end
if v ~= '' then call('HSET', key, 'v', sub(v, 1, 64), 'u', sub(v, 65)) end
if g and g ~= '' then call('HSET', key, 'g', g) end
call('HSET', key, 's', value, worker, record)
if ttl and got.err then call('PEXPIRE', key, ttl) end
return word
