--- Leased or delayed messages that come back: dead, or ready again at their old place and with their old deadline.
--- What becomes of messages that come back: who is dead, who waits on, who must go for the others. Nothing is written.
--
-- @use log message_ttl message record ready failures delays dead_letter limits pause
local requeue = {}

--- Make one message ready again, or set it aside until `ends`. Returns what `delays.put` does.
function requeue.put(q, now, entry, ends)
  local id, header = entry[1], entry[2][1]
  if ends and ends > now then
    return lazy(delays).put(q, entry, ends)
  end
  local own, deadline = message.deadline(header), message_ttl.deadline(q, id, header)
  redis.call('ZADD', q.requeued, tonumber(string.sub(id, 1, 13)), id)
  q.ready_bytes = q.ready_bytes + #entry[2][2]
  if own then
    redis.call('ZADD', q.expiry, own, id)
  end
  if deadline then
    record.schedule_sweep(q, deadline)
  end
end

--- Messages that were read come back. Returns how many did or died, how many had to go for them, and whether some stay
-- away for want of room. What comes first frees memory.
function requeue.run(q, now, source, entries, how)
  if #entries == 0 then return 0, 0, false end
  local fate, away = requeue.classify(q, now, source, entries, how), {}
  local room = requeue.make_room(q, fate, how)
  requeue.leave(q, source, fate)
  for _, entry in ipairs(fate.later) do
    away[entry[1]] = requeue.put(q, now, entry, fate.ends[entry[1]])
  end
  for _, entry in ipairs(fate.back) do
    requeue.put(q, now, entry)
  end
  for _, entry in ipairs(fate.aside) do
    redis.call('ZADD', q.delayed, now, entry[1])
    record.schedule_sweep(q, now)
  end
  requeue.note_failures(q, fate, how, away)
  if #fate.spent > 0 then lazy(requeue).bury(q, now, 'delivery_limit', fate.spent, how) end
  if #fate.expired > 0 then lazy(requeue).bury(q, now, 'expired', fate.expired, how) end
  if #room.all > 0 then lazy(limits).bury(q, now, room.all) end
  return #entries - #fate.staying, #room.all, #fate.staying > 0
end

--- All but those that stay leave the place where they were.
function requeue.leave(q, source, fate)
  local ids = {''}
  for _, part in ipairs({fate.spent, fate.expired, fate.later, fate.back, fate.aside}) do
    for _, entry in ipairs(part) do ids[#ids + 1] = entry[1] end
  end
  redis.call('ZREM', source, unpack(ids))
end

--- Note the failures of those that live on, with their descriptions, and until when they are to be `away`.
function requeue.note_failures(q, fate, how, away)
  local fields = {}
  for _, part in ipairs({fate.back, fate.later, fate.aside}) do
    for _, entry in ipairs(part) do
      local id = entry[1]
      if how.counted == 1 or away[id] or fate.away[id] then
        local description = how.counted == 1 and how.description ~= '' and how.description or fate.said[id]
        failures.note(q, fields, id, (fate.failed[id] or 0) + how.counted, description, away[id])
      end
    end
  end
  if #fields > 0 then redis.call('HSET', q.failures, unpack(fields)) end
end

--- Remove those that are dead from the queue.
function requeue.bury(q, now, reason, entries, how)
  local ids = {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  if reason == 'expired' then ready.record_loss(q, entries) end
  log.remove(q, ids)
  lazy(dead_letter).bury(q, now, reason, entries, how.counted, reason == 'delivery_limit' and how.description)
end

--- The fate of each, in lists: `spent` is over the delivery limit, `expired` is over, `later` waits until `ends`, `back`
-- is ready again, by id. A failure counts when `counted`.
function requeue.classify(q, now, source, entries, how)
  local ids, last, mixed = {}, '', false
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  local failed, said, away = failures.read(q, ids)
  local ends = source == q.delayed and away or pause.ends(q, now, ids, failed, how)
  local fate = {failed = failed, said = said, away = away, ends = ends, spent = {}, expired = {}, later = {}, back = {}}
  for _, entry in ipairs(entries) do
    local id = entry[1]
    local into = fate.back
    if how.counted == 1 and q.max_deliveries and (failed[id] or 0) + 1 >= q.max_deliveries then
      into = fate.spent
    elseif message_ttl.is_over(q, now, entry) then
      into = fate.expired
    elseif ends[id] and ends[id] > now then
      into = fate.later
    end
    mixed = mixed or id < last
    into[#into + 1], last = entry, id
  end
  if #fate.expired > 1 then lazy(message_ttl).sort(q, fate.expired) end
  if mixed then table.sort(fate.back, function(a, b) return a[1] < b[1] end) end
  return fate
end

--- Who has to go so that all of `fate.back` can be ready: nobody, while the queue is `crowded` by messages whose time is
-- over. Those for whom there is no room stay where they are (`staying`); where all come back in one call, they leave it
-- for `delayed` (`aside`).
function requeue.make_room(q, fate, how)
  fate.staying, fate.aside = {}, {}
  if not limits.drops_oldest(q) then return {all = {}} end
  local room = lazy(limits).enforce_on_requeue(q, fate.back, how.crowded)
  if not room.blocked then return room end
  fate[how.wholly and 'aside' or 'staying'] = {unpack(fate.back, room.blocked)}
  fate.back = {unpack(fate.back, 1, room.blocked - 1)}
  return room
end
