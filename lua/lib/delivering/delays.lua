--- Messages that are away until a delay is over.
--
-- Where retention ends earlier, a message stands in `delayed` with that end, and the end of its delay stands beside its
-- failures. `message_ttl` may change meanwhile: so at the end of retention the message dies, or it is set aside again.
--
-- @use message message_ttl failures record
local delays = {}

--- Set a message aside until `ends`; until its own deadline at the latest, to expire then. Returns the end of its delay
-- if retention ends earlier.
function delays.put(q, entry, ends)
  local id, header = entry[1], entry[2][1]
  local own, deadline = message.deadline(header), message_ttl.deadline(q, id, header)
  if own and own < ends then ends = own end
  local at = deadline and math.min(ends, deadline) or ends
  redis.call('ZADD', q.delayed, at, id)
  record.schedule_sweep(q, at)
  return at < ends and ends or nil
end

--- Whether a shorter retention may end before the delays of messages that were away when options changed.
function delays.are_uncapped(q)
  return q.message_ttl and q.retention_scan ~= 'done' and redis.call('ZCARD', q.delayed) > 0
end

--- Look at about `most` of these messages. `retention_scan` keeps how far that has got.
function delays.cap(q, most)
  redis.call('ZREM', q.delayed, '') -- so that what follows passes when memory is full
  local found = redis.call('ZSCAN', q.delayed, q.retention_scan == '' and '0' or q.retention_scan, 'COUNT', most)
  local ids, ends = {}, {}
  for i = 1, #found[2], 2 do
    local id, at = found[2][i], tonumber(found[2][i + 1])
    if tonumber(string.sub(id, 1, 13)) + q.message_ttl < at then
      ids[#ids + 1], ends[id] = id, at
    end
  end
  local failed, said, away = failures.read(q, ids)
  for _, id in ipairs(ids) do
    redis.call('ZADD', q.delayed, tonumber(string.sub(id, 1, 13)) + q.message_ttl, id)
    redis.call('HSET', q.failures, id, failures.pack(failed[id] or 0, said[id], math.max(away[id] or 0, ends[id])))
  end
  q.retention_scan = found[1] ~= '0' and found[1] or 'done'
end
