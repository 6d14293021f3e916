-- Keeps a running lease's slots; those that were lost are taken again where they are free.
-- KEYS: the lease's record, a key for each charge of slots.
-- ARGV: lease id, ms a slot lives, ms the record lives; for each charge its limit and count.
-- Returns how many of its slots are lost, now (seconds, microseconds), keys repaired.
local id, slot_ms, record_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local record, lost = redis.call('GET', KEYS[1]), 0
if record == 'gone' then return {0, now_s, now_p / 1000000, 0} end
if record then keep(KEYS[1], record_ms) end

for i = 2, #KEYS do
  local limit, count = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
  local used = slots_in_use(KEYS[i], slot_ms)
  local ends = tonumber(redis.call('ZSCORE', KEYS[i], id .. ':1') or 0)
  if ends > now_ms or used + count <= limit then
    hold_slots(KEYS[i], id, count, slot_ms)
  else
    lost = lost + count
  end
end
return {lost, now_s, now_p / 1000000, repaired}
