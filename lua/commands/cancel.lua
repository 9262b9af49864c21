--- Cancel scheduled messages with an id, or with a first sequence; at most a few hundred in one call.
--
-- An id that they have stored in the window of the queue is free again. A message that has arrived is not cancelled.
--
-- @use    clock queue_lifetime schedule reply
-- @keys   meta scheduled upcoming scheduled_ids scheduled_more dedup
-- @args   now id
-- @reply  cancelled more
-- @refuse not_found queue_expired

if redis.call('EXISTS', q.meta) == 0 then
  return reply.refuse('not_found')
elseif queue_lifetime.is_over(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired')
end
local cancelled, more = schedule.cancel(q, arg.id)
if cancelled > 0 then redis.call('HINCRBY', q.meta, 'cancelled', cancelled) end
return reply.ok(q, cancelled, more and 1 or 0)
