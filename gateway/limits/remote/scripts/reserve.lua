-- Takes all or nothing.
-- KEYS: the lease's record, a key for each charge.
-- ARGV: lease id, ms a slot lives, ms the record lives; for each charge its kind, '1' if it is
--   a shadow, most level (pair), cost (pair).
-- Returns 0 refused, 1 taken, 2 ended before it began; now (seconds, microseconds); keys
--   repaired; for each charge the level found (pair).
local id, slot_ms, record_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- A record is here only if this very call came twice or its lease was withdrawn meanwhile.
if redis.call('EXISTS', KEYS[1]) == 1 then return {2, now_s, now_p / 1000000, 0} end

local charges, reply = {}, {}
local refused, shadow_refused = false, false
for i = 2, #KEYS do
  local at = 6 * i - 9
  local kind, shadow = ARGV[at + 1], ARGV[at + 2] == '1'
  local most_s, most_p = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local cost_s, cost_p = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local s, p = level(kind, KEYS[i], slot_ms)
  local after_s, after_p = plus(s, p, cost_s, cost_p)
  if above(after_s, after_p, most_s, most_p) then
    if shadow then shadow_refused = true else refused = true end
  end
  charges[i] = {kind = kind, shadow = shadow, cost_s = cost_s, after_s = after_s, after_p = after_p}
  reply[#reply + 1], reply[#reply + 2] = s, p
end

if not refused then
  for i = 2, #KEYS do
    local charge = charges[i]
    if shadow_refused and charge.shadow then -- nothing of any shadow
    elseif charge.kind == 'slots' then
      hold_slots(KEYS[i], id, charge.cost_s, slot_ms)
    else
      write_tat(KEYS[i], plus(now_s, now_p, charge.after_s, charge.after_p))
    end
  end
  redis.call('SET', KEYS[1], shadow_refused and 'enforced' or 'all', 'PX', record_ms)
end
return {refused and 0 or 1, now_s, now_p / 1000000, repaired, unpack(reply)}
