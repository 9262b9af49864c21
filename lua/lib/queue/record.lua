--- The record of a queue (`meta`): one read at the start of a command, one write at its end.
--
-- @use options queue_lifetime reaper_hint stale
local record = {}

--- Read the record. Returns a refusal, or nil and the values of the further fields that are named. It refuses if the
-- queue is not there, if the caller knows other options, or if the lifetime of the queue has ended at `now` (nil: no
-- check). With `option_set` `default` no option matters here, with `passing` only that messages go on. With `expiring`
-- the queue has a lifetime.
function record.open(q, version, now, ...)
  local m = redis.call('HMGET', q.meta, 'version', 'option_set', 'last_id', 'ready_bytes', 'due_at', 'has_waiters', ...)
  local found_version, option_set, last_id, ready_bytes, due_at, has_waiters = m[1], m[2], m[3], m[4], m[5], m[6]
  if not found_version then
    return 'not_found'
  elseif found_version ~= version then
    return 'stale'
  end
  q.last_id, q.ready_bytes, q.due_at = last_id, tonumber(ready_bytes), tonumber(due_at)
  q.has_waiters, q.had_waiters, q.drops_head = has_waiters, has_waiters, true
  if option_set == 'passing' then
    q.passes_on = true
  elseif option_set ~= 'default' then
    lazy(options).read(q)
    if option_set == 'expiring' and lazy(queue_lifetime).read(q, now) then return 'queue_expired' end
  end
  return nil, unpack(m, 7)
end

--- Read the record for commands that take messages out.
function record.open_all(q, version, now)
  local refusal, cursor, grants, letters, trimmed, large, delivered, scan = record.open(q, version, now, 'cursor',
    'lease_grants', 'holds_dead_letters', 'trimmed_upto', 'large_upto', 'delivered', 'retention_scan')
  if not refusal then
    record.init_state(q, cursor, grants, letters, trimmed, large)
    q.delivered, q.retention_scan = tonumber(delivered), scan or ''
    q.was.delivered, q.was.retention_scan = q.delivered, q.retention_scan
  end
  return refusal
end

--- Read the fields that an enqueue needs only now and then. It happens before the first write.
function record.open_rest(q)
  record.init_state(q, unpack(redis.call('HMGET', q.meta, 'cursor', 'lease_grants', 'holds_dead_letters',
    'trimmed_upto', 'large_upto')))
end

--- Start the state of a queue in this call, and keep its fields as they were read (`q.was`).
function record.init_state(q, cursor, grants, letters, trimmed, large)
  q.cursor, q.lease_grants, q.holds_dead_letters, q.counts = cursor, tonumber(grants), letters, {}
  q.trimmed_upto, q.large_upto = trimmed or '0-0', large and large ~= '' and large or nil
  q.was = {last_id = q.last_id, ready_bytes = q.ready_bytes, due_at = q.due_at or '', has_waiters = q.has_waiters,
    cursor = cursor, lease_grants = q.lease_grants, holds_dead_letters = letters, trimmed_upto = trimmed,
    large_upto = q.large_upto or ''}
end

--- Remove all keys of the queue but its tombstone.
function record.unlink(q)
  redis.call('UNLINK', each('deleted', function(own) return q[own.part] end))
end

--- Add to a counter of the record when it is saved.
function record.count(q, name, n)
  q.counts[name] = (q.counts[name] or 0) + n
end

--- Schedule a sweep at `at`. If the queue was not due so early, `record.save` sends a hint to reapers.
function record.schedule_sweep(q, at)
  if not q.due_at or at < q.due_at then
    q.due_at, q.hint = at, true
  end
end

--- Write the changed fields.
function record.save(q)
  if q.stale then lazy(stale).forget(q) end
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
    lazy(reaper_hint).send(q.meta, q.due_at)
  end
  if q.life then lazy(queue_lifetime).save(q) end
end

--- Write the record where messages arrived and nothing else happened, with the further fields and values.
function record.save_arrivals(q, enqueued, ...)
  redis.call('HSET', q.meta, 'last_id', q.last_id, 'ready_bytes', string.format('%d', q.ready_bytes),
    'enqueued', enqueued, ...)
  if q.has_waiters ~= q.had_waiters then
    redis.call('HSET', q.meta, 'has_waiters', q.has_waiters)
  end
  if q.hint then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', q.due_at))
    lazy(reaper_hint).send(q.meta, q.due_at)
  end
  if q.life then lazy(queue_lifetime).save(q) end
end
