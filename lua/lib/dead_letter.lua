--- Deaths: every one is counted, and moved to the reason's target queue in the same script as its cause.
--
-- @use message lifetime log queue wake reply
local dead_letter = {}

--- The target queue of each reason. `words` are `reason=name`, with `.` for the queue itself; the keys of each other
-- queue follow the command's own, in the order in which they are named.
function dead_letter.targets(q, keys, at, words)
  local by_name, targets = {['.'] = q}, {}
  for reason, name in string.gmatch(words, '(%S+)=(%S+)') do
    if not by_name[name] then
      by_name[name] = {name = name, meta = keys[at + 1], log = keys[at + 2], bell = keys[at + 3], waiting = keys[at + 4]}
      at = at + 4
    end
    targets[reason] = by_name[name]
  end
  return targets
end

--- Read the target's record; make the queue, with default options, if there is none.
function dead_letter.open(q, target, now)
  local m = redis.call('HMGET', target.meta, 'version', 'last', 'bytes', 'due', 'letters', 'message_ttl',
    'max_length', 'max_length_bytes', 'overflow', 'attended')
  if not m[1] then
    queue.create(target.meta, 'auto-' .. string.format('%.0f', now), 0)
    reply.note(q, 'created', target.name)
    m = {'', '0-0', 0, '', '0', false, false, false, 'drop-head', '0'}
  end
  target.last, target.bytes, target.due = m[2], tonumber(m[3]), tonumber(m[4])
  target.message_ttl = tonumber(m[6])
  target.max_length, target.max_length_bytes = tonumber(m[7]), tonumber(m[8])
  target.drops_head = m[9] == 'drop-head'
  target.attended = m[10]
  target.was = {attended = m[10], last = m[2], bytes = target.bytes, due = target.due or '', letters = m[5]}
  target.counts, target.serial, target.hint = {}, nil, nil
end

--- Letters have arrived in `target`: note what follows from that. A limit of the target acts right after.
function dead_letter.close(q, target, now, n, size)
  target.bytes = target.bytes + size
  queue.count(target, 'enqueued', n)
  if target.message_ttl then
    queue.due_by(target, now + target.message_ttl)
  end
  local over = target.max_length_bytes and target.bytes > target.max_length_bytes
    or target.max_length and redis.call('XLEN', target.log) > target.max_length
  if over and target.drops_head then
    queue.due_by(target, now)
    reply.note(q, 'sweep', target.name or queue.name(q.meta))
  end
  if target == q then return end
  wake.ring(target)
  queue.save(target)
end

--- Failed deliveries of these messages so far, by id.
function dead_letter.failures(q, ids)
  local failed = {}
  if #ids > 0 and redis.call('EXISTS', q.redelivered) == 1 then
    for i, n in ipairs(redis.call('HMGET', q.redelivered, unpack(ids))) do
      failed[ids[i]] = tonumber(n)
    end
  end
  return failed
end

--- The same as a list, id and number in turn.
function dead_letter.failed_ones(q, ids)
  local list = {}
  for id, n in pairs(dead_letter.failures(q, ids)) do
    list[#list + 1], list[#list + 2] = id, n
  end
  return list
end

--- Count the deaths of messages that were just removed, and append them to their target.
-- `more` is added to the failed deliveries of each: 1 if the delivery at hand is the cause.
function dead_letter.bury(q, now, reason, entries, more, description)
  if #entries == 0 then return end
  queue.count(q, 'deaths:' .. reason, #entries)
  local target, ids = q.targets[reason], {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  local failed = dead_letter.failures(q, ids)
  if next(failed) then
    redis.call('HDEL', q.redelivered, unpack(ids))
  end
  if target then
    dead_letter.move(q, target, now, entries, {queue = q.name or queue.name(q.meta), reason = reason,
      now = string.format('%d', now), failed = failed, more = more or 0, description = description or ''})
  else
    queue.count(q, 'dropped:' .. reason, #entries)
  end
end

function dead_letter.move(q, target, now, entries, death)
  local moved, size, name = 0, 0, target.name or death.queue
  if target ~= q then dead_letter.open(q, target, now) end
  target.letters = '1'
  death.first = death.queue .. ' ' .. death.reason .. ' 1 ' .. death.now .. ' ' .. death.now .. ' '
  death.rest = ' ' .. #death.description .. ' ' .. death.description
  for _, entry in ipairs(entries) do
    local id, parts = entry[1], entry[2]
    local deadline = lifetime.deadline(q, id, parts[1])
    death.facts = string.format('%s %s %d', string.sub(id, 1, 13), deadline and string.format('%d', deadline) or '-',
      (death.failed[id] or 0) + death.more) .. death.rest
    local header = message.bury(parts[1], id, death, name)
    if header then
      log.append(target, now, header, parts[2])
      moved, size = moved + 1, size + #parts[2]
    else
      queue.count(q, 'dropped:cycle', 1)
    end
  end
  dead_letter.close(q, target, now, moved, size)
end
