--- Deaths: each one is counted, and the message moves to the target queue of the reason in the same script as its
-- cause.
--
-- A script has seven keys of a target queue: meta, log, detached, arrivals, wakeup, waiters and tombstone. Of one in
-- another slot of a cluster it has none, and puts the dead letters into its outbox.
--
-- @use failures history message_ttl append arrivals record reaper_hint options queue_lifetime wakeup reply log outbox
local dead_letter = {}
local MARKED = 1024

--- Count the deaths of messages that were just removed, and append them to their target. `more` is 1 if the delivery at
-- hand is the cause: it counts as failed. `description` is its error. A message over the delivery limit keeps its last
-- error if the delivery at hand brings none.
function dead_letter.bury(q, now, reason, entries, more, description)
  if #entries == 0 then return end
  record.count(q, 'deaths:' .. reason, #entries)
  local into, seqs = q.targets[reason], log.seqs(entries)
  local failed, descriptions = failures.read(q, seqs)
  if next(failed) then
    redis.call('HDEL', q.failures, unpack(seqs))
  end
  if into then
    description = description or ''
    if reason ~= 'delivery_limit' or description ~= '' then descriptions = {} end
    lazy(dead_letter).move(q, into, now, entries, {queue = q.name or reaper_hint.queue_name(q.meta), reason = reason,
      now = string.format('%d', now), failed = failed, more = more or 0, descriptions = descriptions,
      description = dead_letter.described(description)})
  else
    record.count(q, 'dropped:' .. reason, #entries)
  end
end

--- The description at the end of a death record.
function dead_letter.described(text)
  return ' ' .. #text .. ' ' .. text
end

--- Append dead messages to their target, or to the outbox for it.
function dead_letter.move(q, into, now, entries, death)
  local moved, size, all, name = 0, 0, 0, into.name or death.queue
  if into == q then
    into.holds_dead_letters = '1'
  elseif not into.outbox then
    dead_letter.open_target(q, into, now)
  end
  death.first = death.queue .. ' ' .. death.reason .. ' 1 ' .. death.now .. ' ' .. death.now .. ' '
  local fewest = tostring(death.more)
  for _, entry in ipairs(entries) do
    local seq, parts = entry[1], entry[2]
    local failed, last = death.failed[seq], death.descriptions[seq]
    death.numbers = log.ms_digits(seq) .. ' ' .. message_ttl.text(q, seq, parts[1]) .. ' '
      .. (failed and failed + death.more or fewest) .. (last and dead_letter.described(last) or death.description)
    local header = history.bury(parts[1], seq, death, name)
    if header then
      if into.outbox then
        redis.call('XADD', into.outbox, '*', header, parts[2])
      else
        append.one(into, now, header, parts[2])
      end
      moved, size, all = moved + 1, size + #parts[2], all + #header + #parts[2]
    else
      record.count(q, 'dropped:cycle', 1)
    end
  end
  if not into.outbox then
    dead_letter.close_target(q, into, now, moved, size, all)
  elseif moved > 0 then
    lazy(outbox).added(q, into, now, moved)
  end
end

--- The target queue of each reason. `words` are `reason=name`, with `.` for the queue itself, or `reason>name` for a
-- queue in another slot. The keys of the other queues follow those of the command, in the order in which they are first
-- named: seven, or `outgoing` and the outbox.
function dead_letter.bind(q, keys, at, words)
  local by_name, targets = {['.'] = q}, {}
  for reason, mark, name in string.gmatch(words, '([%w_]+)([=>])(%S+)') do
    if not by_name[name] and mark == '>' then
      by_name[name] = {name = name, outgoing = keys[at + 1], outbox = keys[at + 2]}
      at = at + 2
    elseif not by_name[name] then
      by_name[name] = {name = name, meta = keys[at + 1], log = keys[at + 2], detached = keys[at + 3],
        arrivals = keys[at + 4], wakeup = keys[at + 5], waiters = keys[at + 6], tombstone = keys[at + 7]}
      at = at + 7
    end
    targets[reason] = by_name[name]
  end
  return targets
end

--- Read the record of a target, or create the queue with default options.
function dead_letter.open_target(q, t, now)
  local last_id, ready_bytes, due_at, retention, max_length, max_length_bytes, overflow, has_waiters, option_set,
    enqueued, letters, bytes, passes_on, paused = unpack(redis.call('HMGET', t.meta, 'last_id', 'ready_bytes', 'due_at',
    'message_ttl', 'max_length', 'max_length_bytes', 'overflow', 'has_waiters', 'option_set', 'enqueued', 'letters',
    'letter_bytes', 'passes_on', 'paused'))
  if not last_id then
    last_id = options.last_seq(t.tombstone, now)
    options.create(t.meta, 'auto-' .. string.format('%d', now), 0, now, last_id)
    redis.call('UNLINK', t.wakeup)
    reply.note(q, 'created', t.name)
    ready_bytes, due_at, overflow, has_waiters, enqueued = 0, '', 'drop-head', '0', 0
  end
  t.last_id, t.ready_bytes, t.due_at, t.has_waiters = last_id, tonumber(ready_bytes), tonumber(due_at), has_waiters
  t.enqueued, t.letters, t.letter_bytes = tonumber(enqueued), tonumber(letters) or 0, tonumber(bytes) or 0
  t.message_ttl, t.max_length = tonumber(retention), tonumber(max_length)
  t.max_length_bytes, t.drops_head = tonumber(max_length_bytes), overflow == 'drop-head'
  t.had_waiters, t.serial, t.hint, t.passes_on = has_waiters, nil, nil, passes_on and not paused
  -- a dead letter must not be lost because its target was not used for long
  if option_set == 'expiring' and lazy(queue_lifetime).read(t, now) then lazy(queue_lifetime).mark_used(t, now) end
end

--- Note the arrival of dead letters: their bodies have `size` bytes, and with their headers `all`. A limit of the
-- target acts in a sweep of its own.
function dead_letter.close_target(q, t, now, n, size, all)
  t.ready_bytes = t.ready_bytes + size
  if t.message_ttl then
    record.schedule_sweep(t, now + t.message_ttl)
  end
  local over = t.max_length_bytes and t.ready_bytes > t.max_length_bytes
    or t.max_length and redis.call('XLEN', t.log) + redis.call('HLEN', t.detached) > t.max_length
  if over and n > 0 then
    if not t.drops_head then redis.call('HSET', t.meta, 'letters_came', 1) end
    record.schedule_sweep(t, now)
    reply.note(q, 'sweep', t.name or reaper_hint.queue_name(q.meta))
  end
  if t.life then lazy(queue_lifetime).mark_active(t, now) end
  if t == q then -- a queue that buries into itself is no store of dead letters, and has no index
    record.count(t, 'enqueued', n)
    return
  end
  if t.letters == 0 then redis.call('HSET', t.meta, 'holds_dead_letters', 1) end
  local marked = t.enqueued % MARKED + n >= MARKED
  t.enqueued, t.letters, t.letter_bytes = t.enqueued + n, t.letters + n, t.letter_bytes + all
  if marked then lazy(arrivals).mark(t) end
  wakeup.ring(t, now, q)
  record.save_arrivals(t, string.format('%d', t.enqueued), 'letters', string.format('%d', t.letters), 'letter_bytes',
    string.format('%d', t.letter_bytes))
end

--- The number of dead letters, the bytes of their bodies, and those with their headers. They are header and body in
-- turn.
function dead_letter.sizes(letters)
  local bodies, all = 0, 0
  for i = 2, #letters, 2 do
    bodies, all = bodies + #letters[i], all + #letters[i - 1] + #letters[i]
  end
  return #letters / 2, bodies, all
end
