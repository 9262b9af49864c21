--- Messages that were moved out of the log, one by one, in a hash: id -> `<length of the header>:<header><body>`.
local loose = {}

--- The two parts of an entry in one string.
function loose.join(parts)
  return #parts[1] .. ':' .. parts[1] .. parts[2]
end

function loose.split(joined)
  local length, at = string.match(joined, '^(%d+):()')
  return {string.sub(joined, at, at + length - 1), string.sub(joined, at + length)}
end

--- The first `most` of these log entries and of the messages in `loose` beyond `after`, in order.
-- The hash itself has no order; what is in it is ready, leased or delayed, and those are sorted.
function loose.merge(q, entries, after, most)
  local from = after == '' and '-inf' or string.sub(after, 1, 13)
  local ids = redis.call('ZRANGEBYSCORE', q.returned, from, '+inf', 'LIMIT', 0, most + 1000)
  for _, set in ipairs({q.leases, q.delayed}) do
    for _, id in ipairs(redis.call('ZRANGE', set, 0, 4999)) do
      ids[#ids + 1] = id
    end
  end
  for _, id in ipairs(ids) do
    local joined = id > after and redis.call('HGET', q.loose, id)
    if joined then
      entries[#entries + 1] = {id, loose.split(joined)}
    end
  end
  table.sort(entries, function(a, b) return a[1] < b[1] end)
  return {unpack(entries, 1, most)}
end
