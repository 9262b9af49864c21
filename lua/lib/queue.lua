--- A queue's own record (`meta`): one read at the start of a command, and one write at its end (`record.save`).
--
-- @use options lapse budget
local queue = {}

--- Read the record. Returns a refusal if the queue is gone, if the caller knows other options than are in force, or if
-- the queue's lifetime is over at `now` (nil: not looked at). Further fields can be named; their values come back from
-- position 7 on. Where `option_set` is `default`, no option matters here; where it is `expiring`, there is a lifetime.
function queue.open(q, version, now, ...)
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
    if m[2] == 'expiring' and rare(lapse).read(q, now) then return 'queue_expired' end
  end
  return nil, m
end

--- `open` for commands that take messages out.
function queue.open_all(q, version, now)
  local refusal, m = queue.open(q, version, now, 'cursor', 'lease_grants', 'holds_dead_letters', 'trimmed_upto',
    'large_upto', 'delivered', 'retention_scan')
  if not refusal then
    queue.place(q, m[7], m[8], m[9], m[10], m[11])
    q.delivered, q.was.delivered = tonumber(m[12]), tonumber(m[12])
    q.retention_scan, q.was.retention_scan = m[13] or '', m[13] or ''
  end
  return refusal
end

--- Read what an enqueue needs only now and then, before anything is changed.
function queue.open_rest(q)
  local m = redis.call('HMGET', q.meta, 'cursor', 'lease_grants', 'holds_dead_letters', 'trimmed_upto', 'large_upto')
  queue.place(q, m[1], m[2], m[3], m[4], m[5])
end

function queue.place(q, cursor, grants, letters, trimmed, large)
  q.cursor, q.lease_grants, q.holds_dead_letters, q.counts = cursor, tonumber(grants), letters, {}
  q.trimmed_upto, q.large_upto = trimmed or '0-0', large and large ~= '' and large or nil
  q.was = {last_id = q.last_id, ready_bytes = q.ready_bytes, due_at = q.due_at or '', has_waiters = q.has_waiters,
    cursor = cursor, lease_grants = q.lease_grants, holds_dead_letters = letters, trimmed_upto = trimmed,
    large_upto = q.large_upto or ''}
end

--- Ready messages, in constant time.
function queue.ready(q)
  return redis.call('XLEN', q.log) + redis.call('HLEN', q.detached) - redis.call('ZCARD', q.leases)
    - redis.call('ZCARD', q.delayed)
end

--- Nothing of the queue is left.
function queue.unlink(q)
  redis.call('UNLINK', q.meta, q.log, q.detached, q.expiry, q.leases, q.requeued, q.delayed, q.failures, q.wakeup,
    q.waiters, q.consumers, q.dedup, q.dedup_ids, q.dedup_windows)
end

function queue.count(q, name, n)
  q.counts[name] = (q.counts[name] or 0) + n
end

--- Something will happen at `at`. If that is earlier than anything known, reapers are told when the record is saved.
function queue.due_by(q, at)
  if not q.due_at or at < q.due_at then
    q.due_at, q.hint = at, true
  end
end
