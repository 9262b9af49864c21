--- Count the messages of a queue and read its counters. Due messages are swept first, as far as one call may.
--
-- `overdue` is the time in ms for which the oldest due message had waited.
--
-- @use     clock record sweep ready wakeup reply memory
-- @keys    meta log detached expiry requeued states failures wakeup waiters consumers
-- @targets expired maxlen delivery_limit
-- @args    version targets now
-- @reply   more ready bytes states oldest consumers overdue counters: states are, for each state other than ready, its
-- @reply   name, the number of its messages, and when the first of them leaves it (ms or empty); counters are names and
-- @reply   values in turn
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
local states = {}
for state in each('states') do
  local first, n = redis.call('ZRANGE', q[state.part], 0, 0, 'WITHSCORES')[2], #states
  states[n + 1], states[n + 2] = state.name, redis.call('ZCARD', q[state.part])
  states[n + 3] = first and math.floor(first / state.per_ms) or ''
end
return reply.ok(q, more and 1 or 0, ready.count(q), q.ready_bytes, states, oldest and now - oldest or '',
  redis.call('ZCOUNT', q.consumers, string.format('(%.0f', now), '+inf'), overdue, redis.call('HGETALL', q.meta))
