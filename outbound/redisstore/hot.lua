-- One step of a key. The script changes the state and returns the numbers from before, the server's
-- time and how many calls it has booked. Go computes the reply from these with Op.ApplyAt. A step
-- that is not hot goes by compare and swap.
--
-- KEYS[1] is a hash. All numbers are doubles, little endian. At, Born and all that is compared with
-- the server's clock are whole microseconds (µs); other times are whole nanoseconds (ns).
--
--   s   1  token, 8 bytes: other after each write       81  speed
--       9  print of v; 0: only Go may change the key    89  epoch / 2^20, whole
--      17  lock: µs until which the key waits for       97  epoch % 2^20
--          the swap of the process that has the token  105  fails
--      25  expires, µs                                 113  why
--      33  at, µs                                      121  top
--      41  born, µs                                    129  ids
--      49  made, µs                                    137  lead
--      57  skip, ns                                    145  of each limit: level, ret
--      65  rem, ns
--      73  last, ns
--   x   only if any of it is not 0: of the row calls, refused, top, per, fast, trust, until (µs),
--       then of each limit leaked, over, owed
--   g   only if a limit is not leaky: (at - born) µs and skip when it was written, then of each such
--       limit begin, end, units, sure (0, 1), skip, how many slots, and each slot's end and units.
--       Times of the dial are relative to the dial at that time; those of calendars are µs of Unix
--   v   limits, numbers and what changes with these, for Go; if print is 0, all of the key
--   w…  a process's last step: seq, its time (µs), calls booked (-1: a swap), then, as they
--       were before, the lengths of s and x, and s, x, g
--
-- ARGV: 1 the name of the process's field
--       2 token (8 bytes), seq, mode (0 look, 1 swap, 2 hot), fence, clock (µs, at most what the
--         server's clock shows; 0: not known), keep (µs), print, age (µs), reserve (µs), n;
--         capacity, rate, kind and window of each limit; begin, end and next of each calendar's
--         period, in seconds
--       3 hot: v of a key that is to be made; swap: the first 8 bytes of s that were read
--       4 hot: move (0 none, 1 undo, 2 book nothing), reports, backs, runs; then the charge of the
--         move, the reports, the backs, and wait, horizon, after, claim, weight and the runs
--         swap: s, nothing if nothing is to be written; 5 x; 6 v; 7 g
--   charge: id (-1: settled), prev, born (µs; -1: none), place and before in µs and ns (of the
--           dial), until (µs), of each limit N, Y (-inf: nothing can be returned), Up
--   report: 0 settled: charge, Used of each limit. 1 refused, 2 held: epoch (two numbers), wait,
--           longest wait, reason, charge and when it is free in µs and ns. 4 succeeded: epoch
--   run: how many calls, and what each costs of each limit
local floor, ceil, min, max, sub, call = math.floor, math.ceil, math.min, math.max, string.sub, redis.call
local lib, pack, unp = rawget(_G, 'struct'), nil, nil
if lib then
  pack, unp = lib.pack, lib.unpack
else -- the same for formats of nothing but d, where there is no such library
  pack = function(_, ...)
    local parts = {}
    for i, v in ipairs({...}) do
      local sign, low, power = 0, 0, 0
      if v < 0 then sign, v = 128, -v end
      if v ~= v or v == 1 / 0 then
        low, power = v == v and 0 or 2 ^ 51, 2047
      elseif v > 0 then
        low, power = math.frexp(v)
        low, power = (low * 2 - 1) * 2 ^ 52, power + 1022
        if power < 1 then low, power = 0, 0 end
      end
      for j = 1, 6 do
        parts[8 * i - 8 + j] = string.char(low % 256)
        low = floor(low / 256)
      end
      parts[8 * i - 1] = string.char(power % 16 * 16 + low)
      parts[8 * i] = string.char(sign + floor(power / 16))
    end
    return table.concat(parts)
  end
  unp = function(format, text, at)
    local out = {}
    at = at or 1
    for i = 1, #format - 1 do
      local b = {string.byte(text, at, at + 7)}
      local low, power = b[7] % 16, b[8] % 128 * 16 + floor(b[7] / 16)
      for j = 6, 1, -1 do low = low * 256 + b[j] end
      local v = power == 0 and 0 or math.ldexp(1 + low / 2 ^ 52, power - 1023)
      if power == 2047 then v = low == 0 and 1 / 0 or 0 / 0 end
      out[i], at = b[8] >= 128 and -v or v, at + 8
    end
    out[#format] = at
    return unpack(out)
  end
end
local growth = 0.0015885029967387489 -- ln 1.1 / 60, per second: a slow clock speeds up by 10 % a minute
local key, worker, req = KEYS[1], ARGV[1], ARGV[2]
local seq, mode, fence, clock, keep, print, age, reserve, n = unp('<ddddddddd', req, 9)
local got, t = redis.pcall('HMGET', key, 's', 'x', worker, 'g'), call('TIME')
local now = t[1] * 1e6 + t[2]
local s, x, r, g = got[1], got[2], got[3], got[4]
if got.err then s, x, r, g = 'wrong type', false, false, false end
if s == '' then s = 'nothing' end
local word, value, extra, record, ttl, fixed, slotted = 'look', nil, nil, nil, nil, false, nil
local prior = 0 -- the process's last step on record

repeat
  if r and #r >= 24 then -- a step is carried out once
    prior = unp('<d', r)
    if prior == seq then return {'again', now, seq, r} end
    if prior > seq then return {'old', now, prior} end
    if not (prior >= 0) then prior = 0 end
  end
  if mode == 0 then break end
  if clock > 0 and (clock > now or clock < now - 1e6) then
    word = 'late'
    break
  end
  local lock = s and #s >= 144 and unp('<d', s, 17) or 0
  if not (lock > now and lock <= now + 1e6) then lock = 0 end

  if mode == 1 then
    if sub(s or '', 1, 8) ~= ARGV[3] then -- another process was first
      if lock > 0 then return {'busy', now, prior, lock - now} end
      if s and #s >= 144 and reserve > 0 then
        s = sub(req, 1, 8) .. sub(s, 9, 16) .. pack('<d', now + reserve) .. sub(s, 25)
        call('HSET', key, 's', s)
      end
      break
    end
    if ARGV[4] == '' then return {'same', now, prior} end
    value, extra, fixed, slotted, ttl = ARGV[4], ARGV[5], ARGV[6], ARGV[7], keep
    record = pack('<ddd', seq, now, -1)
    break
  end

  local at, born, made, skip, rem, last, speed, expires = now, now, now - age, 0, -1e10, -1e8, 1, 0
  local epoch, count, fails, why, top, ids, lead, theirs = 0, 0, -2, 0, 0, 0, 0, print
  if not s then
    if ARGV[3] == '' then return {'missing', now, prior} end
    fixed = ARGV[3]
    if x then call('HDEL', key, 'x') end
    x, g = false, false
    local high = floor(now / 1048576) -- epoch begins as born in ns, which no double holds
    count = (now - high * 1048576) * 1e3
    epoch, count = high * 1e3 + floor(count / 1048576), count % 1048576
  elseif #s ~= 144 + 16 * n then
    break
  else
    local l
    theirs, l, expires, at, born, made, skip, rem, last, speed, epoch, count, fails, why, top, ids, lead = unp('<ddddddddddddddddd', s, 9)
    if theirs ~= print then break end
    if lock > 0 then return {'busy', now, prior, lock - now} end
  end
  local big = 9e15
  if not (at > now - 8e12 and at < now + 8e12 and skip > -big and skip < big and rem >= -1e10 and rem < big and last >= -1e8 and last < big and
      speed >= 0.01 and speed <= 1 and fails >= -2 and fails < 1e9 and top >= 0 and top <= ids and ids < big and lead >= 0 and lead < 1e300 and
      why >= 0 and why < 256 and made > -big and made < big and epoch > -big and epoch < big and count >= 0 and count < 1048576 and born > -8e15 and born < 8e15) then
    word = 'cold'
    break
  end
  local cap, rate, kind, window, level, ret, leaked, over, owed = {}, {}, {}, {}, {}, {}, nil, nil, nil
  local calls, refused, high, per, fast, trust, till = 0, 0, 0, 0, 0, 0, 0
  if x then
    if #x ~= 56 + 24 * n then
      word = 'cold'
      break
    end
    calls, refused, high, per, fast, trust, till = unp('<ddddddd', x)
    leaked, over, owed = {}, {}, {}
    for i = 1, n do leaked[i], over[i], owed[i] = unp('<ddd', x, 33 + 24 * i) end
  end
  local sound, plain = true, true
  for i = 1, n do
    cap[i], rate[i], kind[i], window[i] = unp('<dddd', req, 49 + 32 * i)
    plain = plain and kind[i] == 0
    level[i], ret[i] = 0, 0
    if s then level[i], ret[i] = unp('<dd', s, 129 + 16 * i) end
    sound = sound and level[i] >= 0 and level[i] < 1e15 and ret[i] < 1e25 and ret[i] > -1e25
  end
  if not sound or s and plain and g then
    word = 'cold'
    break
  end

  local function seconds(ns) -- as time.Duration.Seconds rounds
    local whole = ns < 0 and ceil(ns / 1e9) or floor(ns / 1e9)
    return whole + (ns - whole * 1e9) / 1e9
  end
  local steps = ARGV[4]
  local move, reports, backs, runs = unp('<dddd', steps)
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
  local ahead, changed, m = 0, false, 0
  if high ~= 0 then
    till = min(till, now + 3.6e9)
    if till <= now then calls, refused, high, per, fast, trust, till = 0, 0, 0, 0, 0, 0, 0 end
  end
  local e = (now - at) * 1e3
  if e <= 0 then
    skip = skip + e
    if e >= -1e9 then ahead = at - now else changed = true end
  else
    local d = rem > 0 and max(0, e - rem) or e
    if leaked and d < e then
      local sec = seconds(e - d)
      for i = 1, n do leaked[i] = max(0, leaked[i] - rate[i] * sec) end
    end
    rem = max(-1e10, rem - e)
    if speed < 1 then d, speed = dial_of(d) end
    skip = skip + (e - d)
    if d > 0 then
      local sec = seconds(d)
      for i = 1, n do if kind[i] == 0 then level[i] = max(0, level[i] - rate[i] * sec) end end
      last = max(-1e8, last - d)
    end
  end
  if owed and last <= 0 and rem <= 0 then -- no level counts on anything
    for i = 1, n do
      owed[i] = 0
      if level[i] <= cap[i] then over[i] = 0 end
    end
  end

  local begin, fin, units, sure, gap, slots, fill, undone, look, add, sure_end
  if not plain then
    begin, fin, units, sure, gap, slots = {}, {}, {}, {}, {}, {}
    local pos, at_g, skip_g, calendar = 17, now - born, skip, 81 + 32 * n
    if g and #g >= 16 then at_g, skip_g = unp('<dd', g) end
    local shift = (now - born - at_g) * 1e3 - (skip - skip_g) -- the dial since g was written
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
    fill = function(i, u, w)
      ret[i], slotted = ret[i] + u, true
      if kind[i] == 1 then
        local p, gone = slots[i], 1
        while p[gone] and p[gone] <= -max(0, rem) do gone = gone + 2 end
        if gone > 1 then
          p = {unpack(p, gone)}
          slots[i] = p
        end
        local ends, j = w + window[i], #p - 1
        if j > 0 and ends <= p[j] or j > 2 and ends - p[j - 2] < floor(window[i] / 64) then
          p[j], p[j + 1] = max(p[j], ends), p[j + 1] + u
        else
          slot(p, ends, u)
        end
        level[i] = level[i] + u
      elseif kind[i] == 2 then
        if sure_end(i) <= 0 then
          units[i], begin[i], gap[i], sure[i] = 0, w, skip, w == 0 and rem <= 0 and speed == 1 and 1 or 0
        end
        units[i], fin[i] = units[i] + u, max(fin[i], w + window[i])
        local _, is = sure_end(i)
        sure[i] = is
        look(i)
      else
        level[i] = level[i] + u
      end
    end
    -- add adds to what a call of due and until has taken, or takes back from it what is safe.
    add = function(i, more, due, known, till)
      slotted = true
      if kind[i] == 1 then
        local p, place, j = slots[i], known and due or 0, 1
        while p[j] and p[j] < place + window[i] do j = j + 2 end
        if more > 0 and p[j] then
          p[j + 1] = p[j + 1] + more
        elseif more > 0 and place + window[i] > 0 then
          slot(p, place + window[i], more)
        elseif more < 0 and known and p[j] and place >= begin[i] and place + window[i] > -max(0, rem) then
          take(p, i, j, min(-more, p[j + 1]))
        end
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
      if kind[i] ~= 1 then
        ret[i] = ret[i] - u
        add(i, -u, due, true, till)
      elseif #slots[i] > 0 then
        ret[i], slotted = ret[i] - u, true
        take(slots[i], i, #slots[i] - 1, u)
        look(i)
      end
    end
    for i = 1, n do
      if kind[i] > 0 then
        local some = 0
        begin[i], fin[i], units[i], sure[i], gap[i], slots[i] = 0, 0, 0, 0, 0, {}
        if s then
          if not g or #g < pos + 47 then sound = false break end
          begin[i], fin[i], units[i], sure[i], gap[i], some, pos = unp('<dddddd', g, pos)
          if not (some >= 0 and some <= 128 and #g >= pos + 16 * some - 1) then sound = false break end
          local p, was, far = slots[i], -9.2e18, 9.2e18
          if some > 0 then
            p = {unp('<' .. string.rep('d', 2 * some), g, pos)}
            slots[i], pos = p, table.remove(p)
          end
          sound = sound and begin[i] > -far and begin[i] < far and fin[i] > -far and fin[i] < far and gap[i] > -far and gap[i] < far and
            units[i] >= 0 and units[i] < 1e15 and shift > -far and shift < far
          for j = 1, 2 * some - 1, 2 do
            local ends, u = p[j], p[j + 1]
            sound = sound and ends >= was and ends < far and u >= 0 and u < 1e15
            was, p[j] = ends, ends - shift
          end
          if not sound then break end
          if kind[i] < 3 then begin[i], fin[i] = begin[i] - shift, fin[i] - shift end
        end
        if kind[i] > 2 then
          local b, f, next = unp('<ddd', req, calendar)
          local unix = now + ahead
          calendar = calendar + 24
          b, f = b * 1e6, f * 1e6
          if fin[i] > 0 and unix < begin[i] and unix >= begin[i] - 2e6 then unix = begin[i] end
          if unix >= f then b, f = f, next * 1e6 end
          if not (unix >= b and unix < f) then -- Go says that the step is not timely
            sound = 'look'
            break
          end
          if b < begin[i] or f > fin[i] then -- another period
            if begin[i] ~= 0 then sure[i] = 0 end
            if begin[i] ~= 0 and b >= fin[i] then
              level[i] = 0
            elseif begin[i] ~= 0 and f == begin[i] then
              f = fin[i]
            end
            begin[i], fin[i], changed, slotted = b, f, true, true
          end
        end
        look(i)
      end
    end
    if s and sound == true and #g ~= pos - 1 then sound = false end
    if sound ~= true then
      word, slotted = sound or 'cold', nil
      break
    end
  end

  local moved = false
  if move + reports + backs > 0 then
    local pos = 33
    local id, prev, life, due, before, mine, of_until
    local N, Y, U, used = {}, {}, {}, {}
    local function charge()
      local p, pns, q, qns
      id, prev, life, p, pns, q, qns, of_until, pos = unp('<dddddddd', steps, pos)
      due, before = (p - (now - born)) * 1e3 + pns + skip, (q - (now - born)) * 1e3 + qns + skip
      mine = life == born and id <= ids -- else the server has lost it
      for i = 1, n do N[i], Y[i], U[i], pos = unp('<ddd', steps, pos) end
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
      top, last, changed = prev, max(-1e8, before), true
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
    -- hold lets no call leave for d. c: of a call, whose units have leaked at free.
    local function hold(d, c, free)
      local held = max(0, rem)
      if d <= held then return false end
      local ext, l = d - held, last
      if c and latest() then l = max(-1e8, before) end
      local out, leaks = l > -1e8, d - held
      if out then leaks = c and mine and min(max(0, free), ext) or 0 end
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
          slotted = true
          begin[i], fin[i] = begin[i] - leaks, fin[i] - leaks
          local p, gone = slots[i], -leaks - 1e8
          for j = 1, #p, 2 do p[j] = p[j] - leaks end
          if kind[i] == 1 then
            for j = 1, #p, 2 do
              if p[j] - window[i] >= gone then break end
              p[j] = p[j] - (ext - leaks)
            end
            begin[i] = max(begin[i], gone)
          end
          look(i)
        end
      end
      if short and kind[short] == 0 then
        local room = out and 0 or c and mine and Y[short] > -math.huge and N[short] or min(1, cap[short])
        level[short] = max(level[short], cap[short] + rate[short] * seconds(max(0, last)) - room)
        ret[short] = ret[short] + level[short]
      end
      return true
    end
    -- steer returns the speed after a refusal that the row has counted already.
    local function steer(soon)
      local v, cut = speed, max(0.01, speed * (soon and 0.7 or 0.9))
      local each = calls / refused
      local function begin(w) calls, refused, high = 0, 0, w end
      local function deepest(k) return min(0.4, k / 150) end
      local function least(k) return max(0.5 * high, fast * deepest(k)) end
      fast = max(fast, v)
      if trust > 0 then
        if refused < 16 and (refused < 5 or each >= per / 5) then return v end
        local slower = v
        if each < per / 5 then slower = max(0.01, 0.7 * v) elseif each < per / 2 then slower = max(0.01, 0.8 * v) end
        if refused >= 16 then
          trust = trust - 1
          if each > 3 * per then trust = 0 end
          if trust == 0 then per, fast = 0, v end
        end
        begin(slower)
        return slower
      end
      if refused < 16 then return max(cut, min(v, least(per > 0 and per or each))) end
      local none = -trust
      if per == 0 then
        per, none = each, 0
      elseif each >= 2 * per then -- slowing down pays
        per, fast, none = each, high, 0
      elseif cut <= fast * deepest(each) or none >= 3 and v <= 0.6 * fast then -- it does not: undo it
        per, trust = min(each, per), 128
        begin(fast)
        return fast
      elseif each < per / 2 then
        per, none = each, 0
      else
        none = min(none + 1, 3)
      end
      trust = -none
      begin(v)
      return max(cut, min(v, least(each)))
    end

    if move == 1 then
      charge()
      moved = undo()
    end
    if move > 0 and not moved then runs = 0 end
    for _ = 1, reports do
      local kind
      kind, pos = unp('<d', steps, pos)
      if kind == 0 then
        charge()
        for i = 1, n do used[i], pos = unp('<d', steps, pos) end
        settle()
        changed = true
      elseif kind == 4 then
        local us, ns
        us, ns, pos = unp('<dd', steps, pos)
        if us == epoch and ns == count and fails ~= -1 then fails, changed = -1, true end
      else
        local us, ns, d, longest, reason, f, fns
        us, ns, d, longest, reason, pos = unp('<ddddd', steps, pos)
        charge()
        f, fns, pos = unp('<dd', steps, pos)
        local holds, newest = true, us == epoch and ns == count
        if kind == 1 then
          if newest or high > 0 then
            if high == 0 then high = speed end
            refused, till, changed = min(refused + 1, 4095), now + 3.6e9, true
          end
          if newest then
            count, changed = count + 1, true
            if count == 1048576 then epoch, count = epoch + 1, 0 end
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
        end
        if holds and hold(d, life >= 0, (f - (now - born)) * 1e3 + fns + skip) then why = reason end
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
    steps = sub(steps, pos)
  else
    steps = sub(steps, 33)
  end

  if runs > 0 then
    local most, horizon, after, claim, weight, pos = unp('<ddddd', steps)
    if moved then most = 4.6e18 end
    after = after > 0 and max(0, after - max(0, rem)) or 0
    if speed < 1 and after > 0 then after = dial_of(after) end
    local begins, full, ends, u = claim > lead, false, 0, {}
    local sum = begins and 0 or claim
    for _ = 1, runs do
      local left
      left, pos = unp('<d', steps, pos)
      for i = 1, n do
        u[i], pos = unp('<d', steps, pos)
        full = full or u[i] > cap[i]
      end
      while left > 0 and not full do
        local w = max(0, last)
        if m == 0 then w = max(w, after) end
        local again = not plain
        for i = 1, n do
          if u[i] > 0 and kind[i] == 0 then
            local total = level[i] + u[i]
            local above = total - cap[i]
            if above > 2e-15 * total then
              above = above / rate[i] * 1e9
              if above >= 1 then w = max(w, ceil(above)) end
            end
          end
        end
        while again and not full do -- until no limit makes it later
          again = false
          for i = 1, n do
            local total, fit, at_w = level[i] + u[i], cap[i] * (1 + 0.5e-9), w
            if u[i] == 0 then -- it fills it not
            elseif kind[i] == 1 and total > fit then
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
              local unix, after_w = now + ahead, max(0, rem) + (speed < 1 and real_of(w) or w)
              full = full or total > fit or after_w >= (fin[i] - 1e6 - unix) * 1e3
              local early = (begin[i] + 1e6 - unix) * 1e3
              if after_w < early then
                local reach = max(0, early - max(0, rem))
                if speed < 1 then
                  reach = dial_of(reach)
                  while max(0, rem) + real_of(reach) < early do reach = reach + 1 end
                end
                w = max(w, reach)
              end
            end
            again = again or w > at_w
          end
        end
        local real = max(0, rem) + (speed < 1 and real_of(w) or w)
        if full or real > most then
          full = true
          break
        end
        local more, run = 1, w > 0 and seconds(w) or 0
        if plain and left > 1 and w == 0 and rem <= 0 and not (claim > 0) then -- so many leave now for certain
          more = left
          for i = 1, n do
            if u[i] > 0 then more = min(more, floor((cap[i] - level[i]) / u[i]) - 1) end
          end
          more = max(1, more)
        end
        for i = 1, n do
          if u[i] > 0 and kind[i] > 0 then
            fill(i, u[i], w)
          elseif u[i] > 0 then
            local l = max(level[i], rate[i] * run)
            for _ = 1, more do l = l + u[i] end
            level[i] = l
          end
        end
        ids, last = ids + more, max(last, w)
        if rem > 0 then last = max(last, 1e3) end
        if m == 0 then ends = real + max(1e8, real) end
        most = horizon
        if claim > 0 then
          sum = sum + u[1] / weight
          lead = max(lead, sum)
          if not begins and sum < lead and u[1] > 0 then most = max(most, ends) end
        end
        m, left, top, changed = m + more, left - more, ids, true
      end
    end
    if moved and m == 0 then -- the move is not made
      word = 'cold'
      break
    end
    if high > 0 then calls = min(calls + m, 4294967295) end
  end

  if not changed then
    word = pack('<dddd', now, 0, s and #s or 0, x and #x or 0) .. (s or '') .. (x or '') .. (g or '')
    if fence == 1 then -- only the record, so that no earlier step is carried out any more
      call('HSET', key, worker, pack('<d', seq) .. word)
      if not s then call('PEXPIRE', key, string.format('%.0f', keep / 1e3 + 1)) end
    end
    return pack('<dd', prior, 0) .. word
  end
  local w, levels, some, ends = last + 1e8, {}, high > 0, 0
  for i = 1, n do
    if kind[i] == 0 then
      w = max(w, level[i] / rate[i] * 1e9)
    elseif kind[i] == 1 then
      w = max(w, slots[i][#slots[i] - 1] or 0)
    elseif kind[i] == 2 then
      w = max(w, fin[i])
    elseif level[i] > 0 then
      ends = max(ends, fin[i] + 1e6 - now)
    end
    levels[i] = pack('<dd', level[i], ret[i])
    some = some or leaked and (leaked[i] > 0 or over[i] > 0 or owed[i] > 0)
  end
  local need = max(0, rem) + (speed < 1 and max(real_of(w), -math.log(speed) / growth * 1e9) or w)
  need = max(max(need, rem + 1e10) / 1e3, ends)
  if high > 0 then need = max(need, till - now) end
  need = need + ahead
  if not (expires >= now + need + keep / 2 and expires < now + 9e15) then
    ttl = min(need * 1.25, need + 8.64e10) + keep
    expires = now + ttl
  end
  value = pack('<ddddddddddddddddd', theirs, 0, expires, now + ahead, born, made, skip + ahead * 1e3, rem, last, speed, epoch, count, fails, why, top, ids, lead)
  value = sub(req, 1, 8) .. value .. table.concat(levels)
  if some then
    extra = {pack('<ddddddd', calls, refused, high, per, fast, trust, till)}
    for i = 1, n do
      extra[i + 1] = leaked and pack('<ddd', leaked[i], over[i], owed[i]) or pack('<ddd', 0, 0, 0)
    end
    extra = table.concat(extra)
  else
    extra = ''
  end
  if slotted then
    local parts = {pack('<dd', now - born, skip)}
    for i = 1, n do
      if kind[i] > 0 then
        local p = slots[i]
        parts[#parts + 1] = pack('<dddddd', max(begin[i], -8e15), fin[i], units[i], sure[i], gap[i], #p / 2)
        if #p > 0 then parts[#parts + 1] = pack('<' .. string.rep('d', #p), unpack(p)) end
      end
    end
    slotted = table.concat(parts)
  end
  word = pack('<dddd', now, m, s and #s or 0, x and #x or 0) .. (s or '') .. (x or '') .. (g or '')
  record, word = pack('<d', seq) .. word, pack('<dd', prior, 1) .. word
until true

if not value then
  local v = not got.err and call('HGET', key, 'v')
  return {word, now, prior, s or '', x or '', v or '', g or ''}
end
if got.err then call('DEL', key) end
call('HSET', key, 's', value, worker, record)
if fixed and fixed ~= '' then call('HSET', key, 'v', fixed) end
if slotted and slotted ~= '' then
  call('HSET', key, 'g', slotted)
elseif slotted and g then
  call('HDEL', key, 'g')
end
if extra ~= '' then
  if extra ~= x then call('HSET', key, 'x', extra) end
elseif x then
  call('HDEL', key, 'x')
end
if ttl then call('PEXPIRE', key, string.format('%.0f', ttl / 1e3 + 1)) end
if not r and call('HLEN', key) > 1000 then -- forget the processes that have not used the key for the longest
  local all, times = call('HGETALL', key), {}
  for i = 1, #all, 2 do
    if #all[i] > 1 then times[#times + 1] = {#all[i + 1] >= 24 and unp('<d', all[i + 1], 9) or 0, all[i]} end
  end
  table.sort(times, function(a, b) return a[1] < b[1] end)
  for i = 1, #times - 768 do call('HDEL', key, times[i][2]) end
end
if mode == 1 then return {'done', now, prior} end
return word
