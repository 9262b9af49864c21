--- A queue's own record (`meta`): one read at the start of a command, and one write at its end (`record.save`).
--
-- @use options lapse budget
local queue = {}

--- Read the record. Returns a refusal if the queue is gone, if the caller knows other options than are in force, or if
-- the queue's lifetime is over at `now` (nil: not looked at). Further fields can be named; their values come back from
-- position 7 on. A `plain` queue has no option that matters here, a `mortal` one has a lifetime.
function queue.open(q, version, now, ...)
  local m = redis.call('HMGET', q.meta, 'version', 'plain', 'last', 'bytes', 'due', 'attended', ...)
  if not m[1] then
    return 'not_found'
  elseif m[1] ~= version then
    return 'stale'
  end
  q.last, q.bytes, q.due, q.attended, q.was_attended = m[3], tonumber(m[4]), tonumber(m[5]), m[6], m[6]
  q.drops_head = true
  if m[2] ~= '1' then
    options.read(q)
    if m[2] == 'mortal' and rare(lapse).read(q, now) then return 'lapsed' end
  end
  return nil, m
end

--- `open` for commands that take messages out.
function queue.open_all(q, version, now)
  local refusal, m = queue.open(q, version, now, 'cursor', 'grants', 'letters', 'trimmed', 'large', 'delivered', 'capping')
  if not refusal then
    queue.place(q, m[7], m[8], m[9], m[10], m[11])
    q.delivered, q.was.delivered = tonumber(m[12]), tonumber(m[12])
    q.capping, q.was.capping = m[13] or '', m[13] or ''
  end
  return refusal
end

--- Read what an enqueue needs only now and then, before anything is changed.
function queue.open_rest(q)
  local m = redis.call('HMGET', q.meta, 'cursor', 'grants', 'letters', 'trimmed', 'large')
  queue.place(q, m[1], m[2], m[3], m[4], m[5])
end

function queue.place(q, cursor, grants, letters, trimmed, large)
  q.cursor, q.grants, q.letters, q.counts = cursor, tonumber(grants), letters, {}
  q.trimmed, q.large = trimmed or '0-0', large and large ~= '' and large or nil
  q.was = {last = q.last, bytes = q.bytes, due = q.due or '', attended = q.attended, cursor = cursor,
    grants = q.grants, letters = letters, trimmed = trimmed, large = q.large or ''}
end

--- Ready messages, in constant time.
function queue.ready(q)
  return redis.call('XLEN', q.log) + redis.call('HLEN', q.loose) - redis.call('ZCARD', q.leases)
    - redis.call('ZCARD', q.delayed)
end

--- Nothing of the queue is left.
function queue.unlink(q)
  redis.call('UNLINK', q.meta, q.log, q.loose, q.expiry, q.leases, q.returned, q.delayed, q.redelivered, q.bell, q.waiting,
    q.consumers, q.seen, q.named, q.windows)
end

function queue.count(q, name, n)
  q.counts[name] = (q.counts[name] or 0) + n
end

--- Something will happen at `at`. If that is earlier than anything known, reapers are told when the record is saved.
function queue.due_by(q, at)
  if not q.due or at < q.due then
    q.due, q.hint = at, true
  end
end
