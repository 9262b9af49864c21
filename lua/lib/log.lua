--- Where messages are kept: the log (a stream), and `detached` for those that were moved out of it one by one.
-- An entry is {id, {packed header, body}} everywhere, as XRANGE gives it. All that is read is counted by `budget`.
--
-- @use loose budget
local log = {}

function log.find(q, id)
  local entry = redis.call('XRANGE', q.log, id, id)[1]
  if not entry then
    local packed = redis.call('HGET', q.detached, id)
    entry = packed and {id, loose.split(packed)} or nil
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
    local n = budget.step(q, large, most - #entries)
    local some = redis.call('XRANGE', q.log, '(' .. from, stop, 'COUNT', n)
    budget.spend(some)
    entries = #entries == 0 and some or rare(log).join(entries, some)
    if #some < n and stop == upto then
      return entries, true
    end
    from = #some == n and some[n][1] or stop
  end
  return entries, false
end

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
