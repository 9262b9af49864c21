--- A queue's own record (`meta`): one read at the start of a command, and one write at its end (`record.save`).
--- Writing a queue's record (`meta`) once a command is done.
--
-- @use options queue_lifetime reaper_hint stale
local record = {}

--- Read the record. Returns a refusal if the queue is gone, if the caller knows other options than are in force, or if
-- the queue's lifetime is over at `now` (nil: not looked at). Further fields can be named; their values come back from
-- position 7 on. Where `option_set` is `default`, no option matters here; where it is `expiring`, there is a lifetime.
function record.open(q, version, now, ...)
  local m = redis.call('HMGET', q.meta, 'version', 'option_set', 'last_id', 'ready_bytes', 'due_at', 'has_waiters', ...)
  if not m[1] then
    return 'not_found'
  elseif m[1] ~= version then
    return 'stale'
  end
  q.last_id, q.ready_bytes, q.due_at, q.has_waiters, q.had_waiters = m[3], tonumber(m[4]), tonumber(m[5]), m[6], m[6]
  q.drops_head = true
  if m[2] ~= 'default' then
    options.read(q)
    if m[2] == 'expiring' and lazy(queue_lifetime).read(q, now) then return 'queue_expired' end
  end
  return nil, m
end

--- `open` for commands that take messages out.
function record.open_all(q, version, now)
  local refusal, m = record.open(q, version, now, 'cursor', 'lease_grants', 'holds_dead_letters', 'trimmed_upto',
    'large_upto', 'delivered', 'retention_scan')
  if not refusal then
    record.init_state(q, m[7], m[8], m[9], m[10], m[11])
    q.delivered, q.was.delivered = tonumber(m[12]), tonumber(m[12])
    q.retention_scan, q.was.retention_scan = m[13] or '', m[13] or ''
  end
  return refusal
end

--- Read what an enqueue needs only now and then, before anything is changed.
function record.open_rest(q)
  local m = redis.call('HMGET', q.meta, 'cursor', 'lease_grants', 'holds_dead_letters', 'trimmed_upto', 'large_upto')
  record.init_state(q, m[1], m[2], m[3], m[4], m[5])
end

function record.init_state(q, cursor, grants, letters, trimmed, large)
  q.cursor, q.lease_grants, q.holds_dead_letters, q.counts = cursor, tonumber(grants), letters, {}
  q.trimmed_upto, q.large_upto = trimmed or '0-0', large and large ~= '' and large or nil
  q.was = {last_id = q.last_id, ready_bytes = q.ready_bytes, due_at = q.due_at or '', has_waiters = q.has_waiters,
    cursor = cursor, lease_grants = q.lease_grants, holds_dead_letters = letters, trimmed_upto = trimmed,
    large_upto = q.large_upto or ''}
end

--- Nothing of the queue is left.
function record.unlink(q)
  redis.call('UNLINK', q.meta, q.log, q.detached, q.expiry, q.leases, q.requeued, q.delayed, q.failures, q.wakeup,
    q.waiters, q.consumers, q.dedup, q.dedup_ids, q.dedup_windows)
end

function record.count(q, name, n)
  q.counts[name] = (q.counts[name] or 0) + n
end

--- Something will happen at `at`. If that is earlier than anything known, reapers are told when the record is saved.
function record.schedule_sweep(q, at)
  if not q.due_at or at < q.due_at then
    q.due_at, q.hint = at, true
  end
end

--- Write what has changed.
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

--- `save` where messages came in and nothing else has happened.
function record.save_arrivals(q, enqueued)
  redis.call('HSET', q.meta, 'last_id', q.last_id, 'ready_bytes', string.format('%d', q.ready_bytes), 'enqueued', enqueued)
  if q.has_waiters ~= q.had_waiters then
    redis.call('HSET', q.meta, 'has_waiters', q.has_waiters)
  end
  if q.hint then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', q.due_at))
    lazy(reaper_hint).send(q.meta, q.due_at)
  end
  if q.life then lazy(queue_lifetime).save(q) end
end
