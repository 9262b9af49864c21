--- Where messages are kept: the log (a stream), and `loose` for those that were moved out of it one by one.
-- An entry is {id, {packed header, body}} everywhere, as XRANGE gives it.
-- Ids are `<13 digits of ms>-<6 digits>`: equally long, so that they sort as text too.
--
-- @use loose queue
local log = {}
local FIRST, LAST = 100000, 999999
local READ_BYTES = 4194304

--- The next id: never lower than the one before, even if the server's clock steps back.
function log.next_id(q, now)
  if q.serial == nil then
    q.ms, q.serial = tonumber(string.sub(q.last, 1, 13)) or 0, tonumber(string.sub(q.last, 15)) or 0
  end
  if now > q.ms or q.serial >= LAST then
    q.ms, q.serial = math.max(now, q.ms + 1), FIRST
    q.prefix = string.format('%013d-', q.ms)
  else
    q.serial = q.serial + 1
    q.prefix = q.prefix or string.format('%013d-', q.ms)
  end
  q.last = q.prefix .. q.serial
  return q.last
end

function log.append(q, now, header, body)
  local id = log.next_id(q, now)
  redis.call('XADD', q.log, id, header, body)
  return id
end

function log.find(q, id)
  local entry = redis.call('XRANGE', q.log, id, id)[1]
  if entry then
    return entry
  end
  local packed = redis.call('HGET', q.loose, id)
  return packed and {id, loose.split(packed)} or nil
end

--- The entries of these ids, in their order. Neighbours are read in one go.
function log.read(q, ids)
  local known, entries = {}, {}
  if #ids > 1 then
    local low, high = ids[1], ids[1]
    for _, id in ipairs(ids) do
      if id < low then low = id end
      if id > high then high = id end
    end
    for _, entry in ipairs(redis.call('XRANGE', q.log, low, high, 'COUNT', #ids)) do
      known[entry[1]] = entry
    end
  end
  for _, id in ipairs(ids) do
    entries[#entries + 1] = known[id] or log.find(q, id)
  end
  return entries
end

--- Remove messages for good. XDEL comes first: it frees, so it is allowed when memory is full.
function log.remove(q, ids)
  if #ids > 0 then
    if redis.call('XDEL', q.log, unpack(ids)) < #ids then
      redis.call('HDEL', q.loose, unpack(ids))
    end
  end
end

--- How many messages of average size may be read at once, so that large bodies do not fill Redis' memory.
function log.readable(q, most)
  if most <= 1 or q.bytes <= READ_BYTES then
    return most
  end
  return math.max(1, math.min(most, math.floor(READ_BYTES / (q.bytes / math.max(1, rare(queue).ready(q))))))
end
