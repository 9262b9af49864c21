--- Where messages are kept: the log (a stream), and `detached` for those that were moved out of it one by one.
-- An entry is {id, {packed header, body}} everywhere, as XRANGE gives it. All that is read is counted by `budget`.
--- Messages that were moved out of the log, one by one, in a hash: id -> `<length of the header>:<header><body>`.
--
-- @use budget
local log = {}

--- Whether a text has the form of a sequence.
function log.is_seq(id)
  return #id == 20 and string.find(id, '^%d+%-%d+$') ~= nil
end

function log.find(q, id)
  local entry = redis.call('XRANGE', q.log, id, id)[1]
  if not entry then
    local packed = redis.call('HGET', q.detached, id)
    entry = packed and {id, log.unpack(packed)} or nil
  end
  if entry then budget.spend({entry}) end
  return entry
end

--- The entries after `from`, up to `upto` (`+`, or an instant in ms as text), at most `most`. The second result says
-- whether these are all.
function log.range(q, from, upto, most)
  local entries = {}
  while #entries < most and budget.is_open() do
    local large = q.large_upto and from < q.large_upto
    local stop = large and (upto == '+' or upto >= string.sub(q.large_upto, 1, 13)) and q.large_upto or upto
    local n = budget.page_size(q, large, most - #entries)
    local some = redis.call('XRANGE', q.log, '(' .. from, stop, 'COUNT', n)
    budget.spend(some)
    entries = #entries == 0 and some or lazy(log).join(entries, some)
    if #some < n and stop == upto then
      return entries, true
    end
    from = #some == n and some[n][1] or stop
  end
  return entries, false
end

--- The bytes of the bodies of entries.
function log.size(entries)
  local size = 0
  for _, entry in ipairs(entries) do
    size = size + #entry[2][2]
  end
  return size
end

--- Append `others` to `entries`.
function log.join(entries, others)
  for i = 1, #others do
    entries[#entries + 1] = others[i]
  end
  return entries
end

--- Remove messages for good. What comes first frees memory, so it is allowed when there is none left.
-- Neighbours at the very beginning of the log go by XTRIM, which drops whole nodes instead of walking through them.
function log.remove(q, ids, dense)
  if #ids == 0 then return end
  local first = dense and not q.large_upto and #ids > 1 and redis.call('XRANGE', q.log, '-', '+', 'COUNT', 1)[1]
  if first and first[1] == ids[1] then
    local ms, serial = string.match(ids[#ids], '^(%d+)-(%d+)$')
    redis.call('XTRIM', q.log, 'MINID', string.format('%s-%d', ms, serial + 1))
  elseif redis.call('XDEL', q.log, unpack(ids)) < #ids then
    redis.call('HDEL', q.detached, unpack(ids))
  end
end

--- The two parts of an entry in one string.
function log.pack(parts)
  return #parts[1] .. ':' .. parts[1] .. parts[2]
end

function log.unpack(joined)
  local length, at = string.match(joined, '^(%d+):()')
  return {string.sub(joined, at, at + length - 1), string.sub(joined, at + length)}
end
