--- The first write of a command. Redis without free memory asks only then whether the command may write.
local memory = {}

--- Begin with a write that frees memory, so that all later writes pass without free memory. It removes nothing.
function memory.may_pass(q)
  redis.call('HDEL', q.meta, '')
end

--- Begin with a write that Redis refuses without free memory. It changes nothing.
function memory.must_ask(q)
  redis.call('HSET', q.meta, 'last_id', q.last_id)
end
