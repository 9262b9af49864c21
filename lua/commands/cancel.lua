--- Cancel scheduled messages: those with the message ids, or with the first sequences, that are given.
--
-- The ids are free again in the window of the queue. A message that has arrived is not cancelled.
--
-- @use    clock queue_lifetime schedule reply
-- @keys   meta scheduled upcoming scheduled_ids dedup
-- @args   now ids...
-- @reply  cancelled: for each id the number of messages that were removed
-- @refuse not_found queue_expired

if redis.call('EXISTS', q.meta) == 0 then
  return reply.refuse('not_found')
elseif queue_lifetime.is_over(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired')
end
local counts, total = {}, 0
for i, id in ipairs(arg.ids) do
  counts[i] = schedule.cancel(q, id)
  total = total + counts[i]
end
if total > 0 then redis.call('HINCRBY', q.meta, 'cancelled', total) end
return reply.ok(q, counts)
