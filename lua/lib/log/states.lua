--- The states of a message that is not ready, and the sets that name the messages behind the cursor.
--
-- A state that is added stands here: counting, peeking, tombstones, repairs and the end of a queue walk these lists.
local states = {}

--- The parts that hold messages in a state other than ready, one part for each state.
function states.away()
  return {'leases', 'delayed'}
end

--- The parts that name messages behind the cursor. A message of `detached` is in exactly one of them.
function states.behind_cursor()
  return {'leases', 'delayed', 'requeued'}
end

--- The number of messages that are not ready.
function states.count_away(q)
  local count = 0
  for _, part in ipairs(states.away()) do
    count = count + redis.call('ZCARD', q[part])
  end
  return count
end
