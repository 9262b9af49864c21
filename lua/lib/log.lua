--- Where messages are kept: the log (a stream), and `loose` for those that were moved out of it one by one.
-- An entry is {id, {packed header, body}} everywhere, as XRANGE gives it.
--
-- @use loose
local log = {}

function log.find(q, id)
  local entry = redis.call('XRANGE', q.log, id, id)[1]
  if entry then
    return entry
  end
  local packed = redis.call('HGET', q.loose, id)
  return packed and {id, loose.split(packed)} or nil
end

--- The entries of these ids, in their order. Neighbours are read in one go; `dense` says that they all are neighbours.
function log.read(q, ids)
  if #ids == 0 then return {} end
  local low, high, known = ids[1], ids[1], {}
  for i = 2, #ids do
    if ids[i] < low then low = ids[i] elseif ids[i] > high then high = ids[i] end
  end
  local entries = redis.call('XRANGE', q.log, low, high, 'COUNT', #ids)
  local dense = #entries == #ids
  for i = 1, #entries do
    known[entries[i][1]] = entries[i]
    dense = dense and entries[i][1] == ids[i]
  end
  entries.dense = dense
  return dense and entries or log.pick(q, ids, known)
end

function log.pick(q, ids, known)
  local entries = {}
  for i = 1, #ids do
    entries[#entries + 1] = known[ids[i]] or log.find(q, ids[i])
  end
  return entries
end

--- Remove messages for good. What comes first frees memory, so it is allowed when there is none left.
-- Neighbours at the very beginning of the log go by XTRIM, which drops whole nodes instead of walking through them.
function log.remove(q, ids, dense)
  if #ids == 0 then return end
  local first = dense and #ids > 1 and redis.call('XRANGE', q.log, '-', '+', 'COUNT', 1)[1]
  if first and first[1] == ids[1] then
    local ms, serial = string.match(ids[#ids], '^(%d+)-(%d+)$')
    redis.call('XTRIM', q.log, 'MINID', string.format('%s-%d', ms, serial + 1))
  elseif redis.call('XDEL', q.log, unpack(ids)) < #ids then
    redis.call('HDEL', q.loose, unpack(ids))
  end
end
