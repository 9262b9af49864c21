--- The clock of all scripts: the time of Redis in whole milliseconds, read once per command.
local clock = {}

--- The time in ms. Tests give `injected`; it is empty otherwise.
function clock.now(injected)
  if injected ~= '' then
    return tonumber(injected)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
