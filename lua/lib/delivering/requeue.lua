--- Messages that come back from a lease or a delay: they die, wait longer, or are ready again in their old place.
--
-- @use log message_ttl message record ready failures delays dead_letter limits pause
local requeue = {}

--- Make one message ready again, or delay it until `ends`. Returns the result of `delays.put`.
function requeue.put(q, entry, ends)
  local seq, header = entry[1], entry[2][1]
  if ends then
    return lazy(delays).put(q, entry, ends)
  end
  local own_deadline, deadline = message.deadline(header), message_ttl.deadline(q, seq, header)
  redis.call('ZADD', q.requeued, log.ms_digits(seq), seq)
  q.ready_bytes = q.ready_bytes + #entry[2][2]
  if own_deadline then
    redis.call('ZADD', q.expiry, own_deadline, seq)
  end
  if deadline then
    record.schedule_sweep(q, deadline)
  end
end

--- Requeue messages that were read. Returns the number of messages that left their place, the number of messages
-- dropped for them, whether some stay for lack of room, and how many of the first had expired. The first write frees
-- memory.
function requeue.run(q, now, source, entries, mode)
  if #entries == 0 then return 0, 0, false, 0 end
  local outcome, away = requeue.classify(q, now, entries, mode), {}
  local room = requeue.make_room(q, outcome, mode)
  requeue.leave(source, outcome)
  for _, entry in ipairs(outcome.later) do
    away[entry[1]] = requeue.put(q, entry, outcome.ends[entry[1]])
  end
  for _, entry in ipairs(outcome.back) do
    requeue.put(q, entry)
  end
  for _, entry in ipairs(outcome.aside) do
    redis.call('ZADD', q.delayed, now, entry[1])
    record.schedule_sweep(q, now)
  end
  requeue.note_failures(q, outcome, mode, away)
  if #outcome.spent > 0 then lazy(requeue).bury(q, now, 'delivery_limit', outcome.spent, mode) end
  if #outcome.expired > 0 then lazy(requeue).bury(q, now, 'expired', outcome.expired, mode) end
  if #room.all > 0 then lazy(limits).bury(q, now, room.all) end
  return #entries - #outcome.staying, #room.all, #outcome.staying > 0, #outcome.expired
end

--- Remove all messages but those that stay from the set where they were.
function requeue.leave(source, outcome)
  local seqs = {''}
  for _, part in ipairs({outcome.spent, outcome.expired, outcome.later, outcome.back, outcome.aside}) do
    for _, entry in ipairs(part) do seqs[#seqs + 1] = entry[1] end
  end
  redis.call('ZREM', source, unpack(seqs))
end

--- Note the failures of surviving messages with their descriptions, and the end of delays in `away`.
function requeue.note_failures(q, outcome, mode, away)
  local fields = {}
  for _, part in ipairs({outcome.back, outcome.later, outcome.aside}) do
    for _, entry in ipairs(part) do
      local seq = entry[1]
      if mode.counted == 1 or away[seq] or outcome.away[seq] then
        local described = mode.counted == 1 and mode.description ~= ''
        local description = described and mode.description or outcome.descriptions[seq]
        failures.note(q, fields, seq, (outcome.failed[seq] or 0) + mode.counted, description, away[seq])
      end
    end
  end
  if #fields > 0 then redis.call('HSET', q.failures, unpack(fields)) end
end

--- Remove dead messages and bury them.
function requeue.bury(q, now, reason, entries, mode)
  local seqs = log.seqs(entries)
  if reason == 'expired' then ready.record_loss(q, entries) end
  log.remove(q, seqs)
  lazy(dead_letter).bury(q, now, reason, entries, mode.counted, reason == 'delivery_limit' and mode.description)
end

--- Classify messages into lists: `spent` (over the delivery limit), `expired`, `later` (they wait until `ends`), `back`
-- (ready again). A failure counts if `mode.counted` is 1. Nothing is written.
function requeue.classify(q, now, entries, mode)
  local seqs, last, unsorted = log.seqs(entries), '', false
  local failed, descriptions, away = failures.read(q, seqs)
  local ends = mode.promoted and away or pause.ends(q, now, seqs, failed, mode)
  local outcome = {failed = failed, descriptions = descriptions, away = away, ends = ends,
    spent = {}, expired = {}, later = {}, back = {}}
  for _, entry in ipairs(entries) do
    local seq = entry[1]
    local into = outcome.back
    if mode.counted == 1 and q.max_deliveries and (failed[seq] or 0) + 1 >= q.max_deliveries then
      into = outcome.spent
    elseif message_ttl.is_over(q, now, entry) then
      into = outcome.expired
    elseif ends[seq] and ends[seq] > now then
      into = outcome.later
    end
    unsorted = unsorted or seq < last
    into[#into + 1], last = entry, seq
  end
  if #outcome.expired > 1 then lazy(message_ttl).sort(q, outcome.expired) end
  if unsorted then table.sort(outcome.back, function(a, b) return a[1] < b[1] end) end
  return outcome
end

--- Choose the messages that must go so that all of `back` can be ready: none while the queue is `crowded` by overdue
-- ones. Messages without room stay where they are (`staying`). If all must come back in one call, they are delayed
-- (`aside`).
function requeue.make_room(q, outcome, mode)
  outcome.staying, outcome.aside = {}, {}
  if not limits.drops_oldest(q) then return {all = {}} end
  local room = lazy(limits).enforce_on_requeue(q, outcome.back, mode.crowded)
  if not room.blocked then return room end
  outcome[mode.wholly and 'aside' or 'staying'] = {unpack(outcome.back, room.blocked)}
  outcome.back = {unpack(outcome.back, 1, room.blocked - 1)}
  return room
end
