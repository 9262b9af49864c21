--- Leased or delayed messages that come back: dead, or ready again at their old place and with their old deadline.
--
-- @use log lifetime message queue ready failures pause delays dead_letter
local returns = {}

--- The fate of each: over the delivery limit, expired, or back. A failure counts when `counted`.
function returns.judge(q, now, entries, failed, counted)
  local spent, expired, back = {}, {}, {}
  for _, entry in ipairs(entries) do
    local n = (failed[entry[1]] or 0) + counted
    if counted == 1 and q.max_deliveries and n >= q.max_deliveries then
      spent[#spent + 1] = entry
    elseif lifetime.is_over(q, now, entry) then
      expired[#expired + 1] = entry
    else
      back[#back + 1] = entry
    end
  end
  return spent, expired, back
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

--- Make one message ready again, or set it aside until `ends`. Returns what `delays.put` does.
function returns.put(q, now, entry, ends)
  local id, header = entry[1], entry[2][1]
  if ends and ends > now then
    return rare(delays).put(q, entry, ends)
  end
  local own, deadline = message.deadline(header), lifetime.deadline(q, id, header)
  redis.call('ZADD', q.returned, tonumber(string.sub(id, 1, 13)), id)
  q.bytes = q.bytes + #entry[2][2]
  if own then
    redis.call('ZADD', q.expiry, own, id)
  end
  if deadline then
    queue.due_by(q, deadline)
  end
end

--- Take messages back from `source` (the leases or the delayed). `how` has `counted`: 1 if their delivery failed, else 0;
-- `description` of the failure, or empty; `delay` in ms where the caller gives one; `ran_out` for leases that ended.
function returns.back(q, now, source, ids, how)
  if #ids == 0 then return end
  local entries, failed, said, away = log.read(q, ids), failures.read(q, ids)
  local ends = source == q.delayed and away or pause.ends(q, now, ids, failed, how)
  local spent, expired, back = returns.judge(q, now, entries, failed, how.counted)
  local fields = {}
  redis.call('ZREM', source, unpack(ids))
  for _, entry in ipairs(back) do
    local id = entry[1]
    local later = returns.put(q, now, entry, ends[id])
    if how.counted == 1 or later or away[id] then
      local description = how.counted == 1 and how.description ~= '' and how.description or said[id]
      failures.note(q, fields, id, (failed[id] or 0) + how.counted, description, later)
    end
  end
  if #fields > 0 then redis.call('HSET', q.redelivered, unpack(fields)) end
  returns.bury(q, now, 'delivery_limit', spent, how)
  returns.bury(q, now, 'expired', expired, how)
end
