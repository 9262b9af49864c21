--- Give the scheduled messages with an id, or with a first sequence, another due time: `+<ms>` from now, or `@<ms>`.
--
-- @use    clock record queue_lifetime schedule reply memory
-- @keys   meta scheduled upcoming scheduled_ids wakeup waiters
-- @args   now id due
-- @reply  moved: the number of messages
-- @refuse not_found queue_expired

local now = clock.now(arg.now)
local version = redis.call('HGET', q.meta, 'version')
local refusal, enqueued = record.open(q, version or '', now, 'enqueued')
if refusal then
  return reply.refuse(refusal)
end
local seqs, at = schedule.find(q, arg.id), schedule.due(now, arg.due)
if #seqs > 0 then
  memory.may_pass(q)
  for _, seq in ipairs(seqs) do
    redis.call('ZADD', q.scheduled, string.format('%d', at), seq)
  end
  schedule.expect(q, now, at)
  if q.life then lazy(queue_lifetime).mark_active(q, at) end
  record.save_arrivals(q, enqueued)
end
return reply.ok(q, #seqs)
