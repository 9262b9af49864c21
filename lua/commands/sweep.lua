--- Sweep a queue, at most a few hundred messages: reclaim leases, promote delayed messages, expire, trim, compact, and
-- let scheduled messages arrive.
--
-- Consumers that stopped waiting are forgotten. A queue whose lifetime has ended is deleted.
--
-- @use     clock record queue_lifetime expire_queue compact dedup wakeup reply sweep arrivals schedule outbox
-- @keys    *
-- @targets expired maxlen delivery_limit
-- @args    version targets now
-- @reply   now due more reclaimed promoted expired trimmed compacted activated retired: how many messages were dropped
-- @reply   with the queue, or empty
-- @refuse  not_found stale

local refusal = record.open_all(q, arg.version)
if refusal then
  return reply.refuse(refusal)
end
local now = clock.now(arg.now)
q.activates = true
if q.life and lazy(queue_lifetime).expires_at(q) <= now then
  local dead, dropped = lazy(expire_queue).run(q, now)
  if dead then
    if not dropped then record.save(q) end
    return reply.ok(q, now, '', dropped and 0 or 1, 0, 0, dead, 0, 0, 0, dropped or '')
  end
end
redis.call('ZREMRANGEBYSCORE', q.waiters, -now, now)
redis.call('ZREMRANGEBYSCORE', q.consumers, '-inf', now)
local done = sweep.run(q, now)
if q.outgoing_at and q.outgoing_at > now then lazy(outbox).offer(q, now) end
local forgotten = dedup.forget(q, now, 250)
local busy = done.reclaimed + done.promoted + done.expired + done.trimmed > 0
if busy and q.holds_dead_letters == '1' then lazy(arrivals).trim(q.arrivals, q.log) end
local compacted, uneven = compact.run(q, 100, busy)
wakeup.ring_if_ready(q, now)
q.hint = nil
local activated, later
if q.arrival_at and q.arrival_at <= now and not done.more then activated, later = lazy(schedule).activate(q, now) end
if not activated then record.save(q) end
local more = done.more or uneven or forgotten >= 250 or later
return reply.ok(q, now, q.due_at or '', more and 1 or 0, done.reclaimed, done.promoted, done.expired, done.trimmed,
  compacted, activated or 0, '')
