-- Before every script. Times are pairs, whole seconds and picoseconds below 1e12: a double holds
-- each of them exactly, but not their sum. A quota's level is a pair too: how far its TAT lies
-- ahead, or the slots in use and 0.
local PICO = 1000000000000
local MARGIN_MS = 1000
local clock = redis.call('TIME')
local now_s, now_p = tonumber(clock[1]), tonumber(clock[2]) * 1000000
local now_ms = now_s * 1000 + math.floor(now_p / 1000000000)
local repaired = 0

local function plus(s, p, more_s, more_p)
  s, p = s + more_s, p + more_p
  if p >= PICO then return s + 1, p - PICO end
  return s, p
end

local function minus(s, p, less_s, less_p)
  s, p = s - less_s, p - less_p
  if p < 0 then return s - 1, p + PICO end
  return s, p
end

local function above(s, p, other_s, other_p)
  return s > other_s or (s == other_s and p > other_p)
end

-- No key without an end, and no end sooner than this.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, string.format('%.0f', ms))
  end
end

-- What cannot be read is forgotten: a full bucket, not an outage.
local function drop(key)
  repaired = repaired + 1
  redis.call('DEL', key)
end

local function ms_until(s, p)
  local ahead_s, ahead_p = minus(s, p, now_s, now_p)
  return math.max(0, ahead_s * 1000 + math.floor(ahead_p / 1000000000)) + MARGIN_MS
end

local function read_tat(key)
  local value = redis.pcall('GET', key)
  if not value then return nil end
  local s, p = string.match(type(value) == 'string' and value or '', '^(%d+) (%d+)$')
  s, p = tonumber(s), tonumber(p)
  if not s or s > 1e15 or p >= PICO then return drop(key) end
  if redis.call('PTTL', key) == -1 then
    repaired = repaired + 1
    keep(key, ms_until(s, p))
  end
  return s, p
end

local function write_tat(key, s, p)
  if above(s, p, now_s, now_p) then
    redis.call('SET', key, string.format('%.0f %.0f', s, p), 'PX',
      string.format('%.0f', ms_until(s, p)))
  else
    redis.call('DEL', key)
  end
end

-- Reads only: the store may be asked about a quota that it has no memory to take from.
local function slots_in_use(key, slot_ms)
  local used = redis.pcall('ZCOUNT', key, string.format('(%.0f', now_ms), '+inf')
  if type(used) == 'table' then drop(key) return 0 end
  if redis.call('PTTL', key) == -1 then
    repaired = repaired + 1
    keep(key, slot_ms)
  end
  return used
end

local function hold_slots(key, id, count, slot_ms)
  for n = 1, count do
    redis.call('ZADD', key, string.format('%.0f', now_ms + slot_ms), id .. ':' .. n)
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now_ms))
  keep(key, slot_ms + MARGIN_MS)
end

local function level(kind, key, slot_ms)
  if kind == 'slots' then return slots_in_use(key, slot_ms), 0 end
  local s, p = read_tat(key)
  if not s or not above(s, p, now_s, now_p) then return 0, 0 end
  return minus(s, p, now_s, now_p)
end
