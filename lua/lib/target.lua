--- The queues that dead letters go to. Of their keys a script has six: meta, log, detached, wakeup, waiters and tombstone.
--
-- @use queue record options lapse wake reply announce
local target = {}

--- The target queue of each reason. `words` are `reason=name`, with `.` for the queue itself; the keys of each other
-- queue follow the command's own, in the order in which they are named.
function target.bind(q, keys, at, words)
  local by_name, targets = {['.'] = q}, {}
  for reason, name in string.gmatch(words, '(%S+)=(%S+)') do
    if not by_name[name] then
      by_name[name] = {name = name, meta = keys[at + 1], log = keys[at + 2], detached = keys[at + 3], wakeup = keys[at + 4],
        waiters = keys[at + 5], tombstone = keys[at + 6]}
      at = at + 6
    end
    targets[reason] = by_name[name]
  end
  return targets
end

--- Read the record of another queue; make the queue, with default options, if there is none.
function target.open(q, t, now)
  local m = redis.call('HMGET', t.meta, 'version', 'last_id', 'ready_bytes', 'due_at', 'holds_dead_letters', 'message_ttl',
    'max_length', 'max_length_bytes', 'overflow', 'has_waiters', 'option_set')
  if not m[1] then
    local last = options.last(t.tombstone, now)
    options.create(t.meta, 'auto-' .. string.format('%d', now), 0, now, last)
    reply.note(q, 'created', t.name)
    m = {'', last, 0, '', '0', false, false, false, 'drop-head', '0'}
  end
  t.last_id, t.ready_bytes, t.due_at, t.message_ttl = m[2], tonumber(m[3]), tonumber(m[4]), tonumber(m[6])
  t.max_length, t.max_length_bytes, t.drops_head = tonumber(m[7]), tonumber(m[8]), m[9] == 'drop-head'
  t.has_waiters = m[10]
  t.was = {has_waiters = m[10], last_id = m[2], ready_bytes = t.ready_bytes, due_at = t.due_at or '',
    holds_dead_letters = m[5]}
  t.counts, t.serial, t.hint = {}, nil, nil
  -- a letter is not lost because nobody has used its target for so long
  if m[11] == 'expiring' and rare(lapse).read(t, now) then rare(lapse).use(t, now) end
end

--- Letters have arrived in a queue: note what follows from that. A limit of it acts right after, in a sweep of its own.
function target.close(q, t, now, n, size)
  t.ready_bytes = t.ready_bytes + size
  queue.count(t, 'enqueued', n)
  if t.message_ttl then
    queue.due_by(t, now + t.message_ttl)
  end
  local over = t.max_length_bytes and t.ready_bytes > t.max_length_bytes
    or t.max_length and redis.call('XLEN', t.log) + redis.call('HLEN', t.detached) > t.max_length
  if over and t.drops_head then
    queue.due_by(t, now)
    reply.note(q, 'sweep', t.name or announce.name(q.meta))
  end
  if t.life then rare(lapse).stir(t, now) end
  if t == q then return end
  wake.ring(t, now)
  record.save(t)
end
