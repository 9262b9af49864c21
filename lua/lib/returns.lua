--- Leased or delayed messages that come back: dead, or ready again at their old place and with their old deadline.
--
-- @use log lifetime message queue ready failures dead_letter length fates
local returns = {}

--- Make one message ready again, or set it aside until `ends`; at its deadline at the latest, to expire then.
function returns.put(q, now, entry, ends)
  local id, header = entry[1], entry[2][1]
  local own, deadline = message.deadline(header), lifetime.deadline(q, id, header)
  if ends and ends > now then
    ends = deadline and math.min(ends, deadline) or ends
    redis.call('ZADD', q.delayed, ends, id)
    return queue.due_by(q, ends)
  end
  redis.call('ZADD', q.returned, tonumber(string.sub(id, 1, 13)), id)
  q.bytes = q.bytes + #entry[2][2]
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
  local fate = fates.judge(q, now, entries, how)
  local room = fates.make_room(q, fate, how)
  returns.leave(q, source, fate)
  returns.fail(q, fate, how)
  for _, entry in ipairs(fate.later) do
    returns.put(q, now, entry, fate.ends[entry[1]])
  end
  for _, entry in ipairs(fate.back) do
    returns.put(q, now, entry)
  end
  for _, entry in ipairs(fate.aside) do
    redis.call('ZADD', q.delayed, now, entry[1])
    queue.due_by(q, now)
  end
  returns.bury(q, now, 'delivery_limit', fate.spent, how)
  returns.bury(q, now, 'expired', fate.expired, how)
  length.bury(q, now, room.all)
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

--- Count the failure of each that lives on, with its description.
function returns.fail(q, fate, how)
  local fields = {}
  for _, part in ipairs(how.counted == 1 and {fate.back, fate.later, fate.aside} or {}) do
    for _, entry in ipairs(part) do
      local id = entry[1]
      local description = how.description ~= '' and how.description or fate.said[id]
      fields[#fields + 1], fields[#fields + 2] = id, failures.packed((fate.failed[id] or 0) + 1, description)
    end
  end
  if #fields > 0 then redis.call('HSET', q.redelivered, unpack(fields)) end
end

--- Remove those that are dead from the queue.
function returns.bury(q, now, reason, entries, how)
  local ids = {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  if reason == 'expired' then ready.miss(q, entries) end
  log.remove(q, ids)
  dead_letter.bury(q, now, reason, entries, how.counted, reason == 'delivery_limit' and how.description)
end
