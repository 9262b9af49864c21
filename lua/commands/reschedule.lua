--- Give scheduled messages with an id, or with a first sequence, another due time: `+<ms>` from now, or `@<ms>`.
--
-- One call moves at most a few hundred; the next one goes on behind `after`.
--
-- @use    clock record queue_lifetime schedule reply memory
-- @keys   meta scheduled upcoming scheduled_ids scheduled_more wakeup waiters
-- @args   now id due after
-- @reply  moved more after at: the number of messages, the place to go on from, and the due time
-- @refuse not_found queue_expired

local now = clock.now(arg.now)
local version = redis.call('HGET', q.meta, 'version')
local refusal, enqueued = record.open(q, version or '', now, 'enqueued')
if refusal then
  return reply.refuse(refusal)
end
local at, seqs, place = schedule.due(now, arg.due), schedule.find(q, arg.id, arg.after)
if #seqs > 0 then
  memory.may_pass(q)
  for _, seq in ipairs(seqs) do
    redis.call('ZADD', q.scheduled, string.format('%d', at), seq)
  end
  schedule.expect(q, now, at)
  if q.life then lazy(queue_lifetime).mark_active(q, at) end
  record.save_arrivals(q, enqueued)
end
return reply.ok(q, #seqs, place and 1 or 0, place or '', string.format('%d', at))
