--- Messages in a state other than ready, by the sets of the states.
--
-- The states stand in one table, `STATES` in `rqttl/protocol/keys.py`. `each('states')` walks it.
local states = {}

--- The number of messages that are not ready.
function states.count_away(q)
  local count = 0
  for state in each('states') do
    count = count + redis.call('ZCARD', q[state.part])
  end
  return count
end
