--- Settle deliveries: the work is done, and the messages are removed.
--
-- @use    clock queue_lifetime lease reply
-- @keys   meta log detached leases failures
-- @args   now replay deliveries...
-- @reply  unknown lost: sequences that an earlier try may have settled, and sequences whose lease had ended
-- @refuse not_found queue_expired

local now, plain = clock.now(arg.now), redis.call('HGET', q.meta, 'option_set')
if not plain then
  return lazy(reply).refuse('not_found')
elseif plain == 'expiring' and lazy(queue_lifetime).read(q, now) then
  return lazy(reply).refuse('queue_expired')
end
local held, lost, unknown = lease.held(q, now, arg.deliveries, arg.replay)
if #held > 0 then
  lease.finish(q, held)
  redis.call('HINCRBY', q.meta, 'acked', #held)
end
return reply.ok(q, reply.list(unknown), reply.list(lost))
