--- Writing a queue's record (`meta`) once a command is done.
--
-- @use announce lapse stale
local record = {}

--- Write what has changed.
function record.save(q)
  if q.stale then rare(stale).forget(q) end
  local fields = {}
  for name, was in pairs(q.was) do
    local is = q[name] or ''
    if is ~= was then
      fields[#fields + 1], fields[#fields + 2] = name, type(is) == 'number' and string.format('%d', is) or is
    end
  end
  if #fields > 0 then
    redis.call('HSET', q.meta, unpack(fields))
  end
  for name, n in pairs(q.counts) do
    redis.call('HINCRBY', q.meta, name, n)
  end
  if q.hint then
    rare(announce).due(q.meta, q.due_at)
  end
  if q.life then rare(lapse).save(q) end
end

--- `save` where messages came in and nothing else has happened.
function record.save_arrivals(q, enqueued)
  redis.call('HSET', q.meta, 'last_id', q.last_id, 'ready_bytes', string.format('%d', q.ready_bytes), 'enqueued', enqueued)
  if q.has_waiters ~= q.had_waiters then
    redis.call('HSET', q.meta, 'has_waiters', q.has_waiters)
  end
  if q.hint then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', q.due_at))
    rare(announce).due(q.meta, q.due_at)
  end
  if q.life then rare(lapse).save(q) end
end
