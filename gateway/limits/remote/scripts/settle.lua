-- Ends a lease: once, however often it is told.
-- KEYS: the lease's record, a key for each charge that differs from what was reserved.
-- ARGV: lease id, ms a mark stays against what may still come of the lease (0: none); for each
--   charge '1' if it is a shadow, 'charge', 'refund' or 'slots', and how much (pair).
-- Returns whether it took effect, now (seconds, microseconds), keys repaired.
local id, mark_ms = ARGV[1], tonumber(ARGV[2])
local record = redis.call('GET', KEYS[1])
local held = record == 'all' or record == 'enforced'

for i = 2, #KEYS do
  local at = 4 * i - 6
  local taken = record == 'all' or (held and ARGV[at + 1] == '0')
  local kind, more_s, more_p = ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  if kind == 'slots' then -- by their own ids: nobody else's can be among them
    slots_in_use(KEYS[i], MARGIN_MS)
    for n = 1, more_s do redis.call('ZREM', KEYS[i], id .. ':' .. n) end
  elseif taken then
    local s, p = read_tat(KEYS[i])
    if kind == 'charge' then
      if not s or above(now_s, now_p, s, p) then s, p = now_s, now_p end
      write_tat(KEYS[i], plus(s, p, more_s, more_p))
    elseif s then
      write_tat(KEYS[i], minus(s, p, more_s, more_p))
    end
  end
end

if mark_ms > 0 then
  redis.call('SET', KEYS[1], 'gone', 'PX', mark_ms)
elseif held then
  redis.call('DEL', KEYS[1])
end
return {held and 1 or 0, now_s, now_p / 1000000, repaired}
