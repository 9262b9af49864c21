--- Deaths: every one is counted, and moved to the reason's target queue in the same script as its cause.
--- The queues that dead letters go to. Of their keys a script has six: meta, log, detached, wakeup, waiters and tombstone.
--
-- @use failures history message_ttl append record reaper_hint options queue_lifetime wakeup reply
local dead_letter = {}

--- Count the deaths of messages that were just removed, and append them to their target.
-- `more` is added to the failed deliveries of each: 1 if the delivery at hand is the cause. `description` says why. A
-- message that failed too often has its last error for one, unless the delivery at hand brings another.
function dead_letter.bury(q, now, reason, entries, more, description)
  if #entries == 0 then return end
  record.count(q, 'deaths:' .. reason, #entries)
  local into, ids = q.targets[reason], {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  local failed, said = failures.read(q, ids)
  if next(failed) then
    redis.call('HDEL', q.failures, unpack(ids))
  end
  if into then
    description = description or ''
    if reason ~= 'delivery_limit' or description ~= '' then said = {} end
    dead_letter.move(q, into, now, entries, {queue = q.name or reaper_hint.queue_name(q.meta), reason = reason,
      now = string.format('%d', now), failed = failed, more = more or 0, said = said,
      rest = dead_letter.described(description)})
  else
    record.count(q, 'dropped:' .. reason, #entries)
  end
end

--- A description as it ends a death record.
function dead_letter.described(text)
  return ' ' .. #text .. ' ' .. text
end

function dead_letter.move(q, into, now, entries, death)
  local moved, size, name = 0, 0, into.name or death.queue
  if into ~= q then dead_letter.open_target(q, into, now) end
  into.holds_dead_letters = '1'
  death.first = death.queue .. ' ' .. death.reason .. ' 1 ' .. death.now .. ' ' .. death.now .. ' '
  local fewest = tostring(death.more)
  for _, entry in ipairs(entries) do
    local id, parts = entry[1], entry[2]
    local failed, said = death.failed[id], death.said[id]
    death.facts = string.sub(id, 1, 13) .. ' ' .. message_ttl.text(q, id, parts[1]) .. ' '
      .. (failed and failed + death.more or fewest) .. (said and dead_letter.described(said) or death.rest)
    local header = history.bury(parts[1], id, death, name)
    if header then
      append.one(into, now, header, parts[2])
      moved, size = moved + 1, size + #parts[2]
    else
      record.count(q, 'dropped:cycle', 1)
    end
  end
  dead_letter.close_target(q, into, now, moved, size)
end

--- The target queue of each reason. `words` are `reason=name`, with `.` for the queue itself; the keys of each other
-- queue follow the command's own, in the order in which they are named.
function dead_letter.bind(q, keys, at, words)
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
function dead_letter.open_target(q, t, now)
  local m = redis.call('HMGET', t.meta, 'version', 'last_id', 'ready_bytes', 'due_at', 'holds_dead_letters', 'message_ttl',
    'max_length', 'max_length_bytes', 'overflow', 'has_waiters', 'option_set')
  if not m[1] then
    local last = options.last_seq(t.tombstone, now)
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
  if m[11] == 'expiring' and lazy(queue_lifetime).read(t, now) then lazy(queue_lifetime).mark_used(t, now) end
end

--- Letters have arrived in a queue: note what follows from that. A limit of it acts right after, in a sweep of its own.
function dead_letter.close_target(q, t, now, n, size)
  t.ready_bytes = t.ready_bytes + size
  record.count(t, 'enqueued', n)
  if t.message_ttl then
    record.schedule_sweep(t, now + t.message_ttl)
  end
  local over = t.max_length_bytes and t.ready_bytes > t.max_length_bytes
    or t.max_length and redis.call('XLEN', t.log) + redis.call('HLEN', t.detached) > t.max_length
  if over and t.drops_head then
    record.schedule_sweep(t, now)
    reply.note(q, 'sweep', t.name or reaper_hint.queue_name(q.meta))
  end
  if t.life then lazy(queue_lifetime).mark_active(t, now) end
  if t == q then return end
  wakeup.ring(t, now)
  record.save(t)
end
