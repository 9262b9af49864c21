--- Leased or delayed messages that come back: dead, or ready again at their old place and with their old deadline.
--
-- @use log lifetime message queue ready failures delays dead_letter length fates
local returns = {}

--- Make one message ready again, or set it aside until `ends`. Returns what `delays.put` does.
function returns.put(q, now, entry, ends)
  local id, header = entry[1], entry[2][1]
  if ends and ends > now then
    return rare(delays).put(q, entry, ends)
  end
  local own, deadline = message.deadline(header), lifetime.deadline(q, id, header)
  redis.call('ZADD', q.requeued, tonumber(string.sub(id, 1, 13)), id)
  q.ready_bytes = q.ready_bytes + #entry[2][2]
  if own then
    redis.call('ZADD', q.expiry, own, id)
  end
  if deadline then
    queue.due_by(q, deadline)
  end
end

--- Messages that were read come back. Returns how many did or died, how many had to go for them, and whether some stay
-- away for want of room. What comes first frees memory.
function returns.some(q, now, source, entries, how)
  if #entries == 0 then return 0, 0, false end
  local fate, away = fates.judge(q, now, source, entries, how), {}
  local room = fates.make_room(q, fate, how)
  returns.leave(q, source, fate)
  for _, entry in ipairs(fate.later) do
    away[entry[1]] = returns.put(q, now, entry, fate.ends[entry[1]])
  end
  for _, entry in ipairs(fate.back) do
    returns.put(q, now, entry)
  end
  for _, entry in ipairs(fate.aside) do
    redis.call('ZADD', q.delayed, now, entry[1])
    queue.due_by(q, now)
  end
  returns.note(q, fate, how, away)
  if #fate.spent > 0 then rare(returns).bury(q, now, 'delivery_limit', fate.spent, how) end
  if #fate.expired > 0 then rare(returns).bury(q, now, 'expired', fate.expired, how) end
  if #room.all > 0 then rare(length).bury(q, now, room.all) end
  return #entries - #fate.staying, #room.all, #fate.staying > 0
end

--- All but those that stay leave the place where they were.
function returns.leave(q, source, fate)
  local ids = {''}
  for _, part in ipairs({fate.spent, fate.expired, fate.later, fate.back, fate.aside}) do
    for _, entry in ipairs(part) do ids[#ids + 1] = entry[1] end
  end
  redis.call('ZREM', source, unpack(ids))
end

--- Note the failures of those that live on, with their descriptions, and until when they are to be `away`.
function returns.note(q, fate, how, away)
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
function returns.bury(q, now, reason, entries, how)
  local ids = {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  if reason == 'expired' then ready.miss(q, entries) end
  log.remove(q, ids)
  rare(dead_letter).bury(q, now, reason, entries, how.counted, reason == 'delivery_limit' and how.description)
end
