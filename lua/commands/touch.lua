--- Use a queue without doing anything to it, as looking whether it is there does elsewhere: its lifetime begins anew.
--
-- @use    clock queue_lifetime reply
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
redis.call('HDEL', q.meta, '') -- so that it passes when memory is full
queue_lifetime.restart(q, now)
return reply.ok(q, 1)
