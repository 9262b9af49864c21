--- The one clock: Redis' own, read once per command, in whole milliseconds.
local clock = {}

--- `injected` replaces the clock in tests; it is empty otherwise.
function clock.now(injected)
  if injected ~= '' then
    return tonumber(injected)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
