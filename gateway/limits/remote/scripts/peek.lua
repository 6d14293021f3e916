-- How quotas stand.
-- KEYS: a key for each charge. ARGV: ms a slot lives; for each charge its kind.
-- Returns 0, now (seconds, microseconds), keys repaired, for each charge the level found (pair).
local reply = {}
for i = 1, #KEYS do
  local s, p = level(ARGV[i + 1], KEYS[i], tonumber(ARGV[1]))
  reply[#reply + 1], reply[#reply + 2] = s, p
end
return {0, now_s, now_p / 1000000, repaired, unpack(reply)}
