--- Mark a queue as used. Its lifetime restarts.
--
-- @use    clock queue_lifetime reply memory
-- @keys   meta
-- @args   now
-- @reply  done
-- @refuse not_found queue_expired

local now = clock.now(arg.now)
if redis.call('EXISTS', q.meta) == 0 then
  return reply.refuse('not_found')
elseif queue_lifetime.is_over(q, now) then
  return reply.refuse('queue_expired')
end
memory.may_pass(q)
queue_lifetime.restart(q, now)
return reply.ok(q, 1)
