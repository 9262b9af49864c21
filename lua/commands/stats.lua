--- Count the messages of a queue and read its counters. Due messages are swept first, as far as one call may.
--
-- `overdue` is the time in ms for which the oldest due message had waited.
--
-- @use     clock record sweep ready wakeup reply memory
-- @keys    meta log detached expiry requeued counted failures wakeup waiters consumers
-- @targets expired maxlen delivery_limit
-- @args    version targets now
-- @reply   more ready bytes oldest consumers overdue counters states...: counters are names and values in turn; states
-- @reply   are the number of messages in each state other than ready, then the lowest score of each (or empty)
-- @refuse  not_found stale queue_expired

local now = clock.now(arg.now)
local refusal = record.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local overdue = sweep.overdue(q, now)
local more = sweep.if_due(q, now)
memory.may_pass(q)
wakeup.ring_if_ready(q, now)
record.save(q)
local oldest = ready.oldest(q)
return reply.ok(q, more and 1 or 0, ready.count(q), q.ready_bytes, oldest and now - oldest or '',
  redis.call('ZCOUNT', q.consumers, string.format('(%.0f', now), '+inf'), overdue, redis.call('HGETALL', q.meta),
  each('counted', function(state) return redis.call('ZCARD', q[state.part]) end),
  each('counted', function(state) return redis.call('ZRANGE', q[state.part], 0, 0, 'WITHSCORES')[2] or '' end))
