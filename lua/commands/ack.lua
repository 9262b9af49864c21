--- Settle deliveries: the work is done, and the messages are removed.
--
-- A settlement makes a place for a consumer that waits under `max_leased`: that needs the keys behind the bar.
--
-- @use    clock queue_lifetime lease control wakeup reply
-- @keys   meta log detached leases failures | wakeup waiters
-- @args   now replay deliveries...
-- @reply  unknown lost: sequences that an earlier try may have settled, and sequences whose lease had ended
-- @refuse not_found queue_expired stale: the call needs all keys

local now, set = clock.now(arg.now), redis.call('HGET', q.meta, 'option_set')
if not set then
  return lazy(reply).refuse('not_found')
elseif set == 'expiring' and lazy(queue_lifetime).read(q, now) then
  return lazy(reply).refuse('queue_expired')
end
local full = (set == 'capped' or set == 'expiring') and lazy(control).is_full(q)
if full and not q.wakeup then
  return lazy(reply).refuse('stale')
end
local held, lost, unknown = lease.held(q, now, arg.deliveries, arg.replay)
if #held > 0 then
  lease.finish(q, held)
  redis.call('HINCRBY', q.meta, 'acked', #held)
  if full then lazy(wakeup).ring_for_place(q, now) end
end
return reply.ok(q, reply.list(unknown), reply.list(lost))
