--- Count the messages of a queue and read its counters. Due messages are swept first, as far as one call may.
--
-- `overdue` is the time in ms for which the oldest due message had waited.
--
-- @use     clock record sweep ready wakeup reply memory
-- @keys    meta log detached expiry leases requeued delayed failures wakeup waiters consumers
-- @targets expired maxlen delivery_limit
-- @args    version targets now
-- @reply   more ready bytes leased delayed oldest consumers overdue lease_end delay_end counters: names and values in
-- @reply   turn
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
local lease_end = redis.call('ZRANGE', q.leases, 0, 0, 'WITHSCORES')[2]
local delay_end = redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]
return reply.ok(q, more and 1 or 0, ready.count(q), q.ready_bytes, redis.call('ZCARD', q.leases),
  redis.call('ZCARD', q.delayed), oldest and now - oldest or '',
  redis.call('ZCOUNT', q.consumers, string.format('(%.0f', now), '+inf'), overdue,
  lease_end and math.floor(lease_end / 1000) or '', delay_end and tonumber(delay_end) or '',
  redis.call('HGETALL', q.meta))
