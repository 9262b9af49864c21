--- Where each message has to be, as the table of states says: for those who look for damage, and mend it.
--
-- @use loose log budget
local places = {}
local ASIDE = {'leases', 'delayed', 'requeued'}

function places.is_id(id)
  return id == '0-0' or type(id) == 'string' and #id == 20 and string.find(id, '^%d+%-%d+$') ~= nil
end

--- Where the cursor and the last sequence have to be, given where they are: no message lies beyond them.
function places.ends(q, cursor, last)
  local facts = redis.call('EXISTS', q.log) == 1 and redis.call('XINFO', 'STREAM', q.log) or {}
  last = places.is_id(last) and last or '0-0'
  for i = 1, #facts, 2 do
    local top = facts[i] == 'last-generated-id' and facts[i + 1]
    if places.is_id(top) and top > last then last = top end
  end
  return places.is_id(cursor) and cursor <= last and cursor or last, last
end

--- The record, and how much each part holds, as one text: it differs after all that a command can have changed.
function places.text(q)
  local fields, lines = redis.call('HGETALL', q.meta), {}
  for i = 1, #fields, 2 do
    lines[#lines + 1] = fields[i] .. '=' .. fields[i + 1]
  end
  table.sort(lines)
  return table.concat(lines, '\n') .. string.format('\n%d %d %d %d %d %d %d', redis.call('XLEN', q.log),
    redis.call('HLEN', q.detached), redis.call('ZCARD', q.leases), redis.call('ZCARD', q.delayed),
    redis.call('ZCARD', q.requeued), redis.call('ZCARD', q.expiry), redis.call('HLEN', q.failures))
end

--- About `most` ids of a part from `after` on, and where the next page begins (empty: nowhere). Of those in the log
-- also the two parts, by id.
function places.page(q, part, after, most)
  local ids, entries = {}, {}
  if part == 'log' then
    local page, all = log.range(q, after == '' and '0-0' or after, '+', most)
    for i, entry in ipairs(page) do
      ids[i], entries[entry[1]] = entry[1], entry[2]
    end
    return ids, all and '' or ids[#ids], entries
  end
  -- Redis gives the messages of `detached` with their ids; those that other parts name are read one by one
  most = budget.step(q, q.large_upto, most)
  local scan = (part == 'detached' or part == 'failures') and 'HSCAN' or 'ZSCAN'
  local found = redis.call(scan, q[part], after == '' and '0' or after, 'COUNT', most)
  for i = 1, #found[2], 2 do
    ids[#ids + 1] = found[2][i]
  end
  return ids, found[1] ~= '0' and found[1] or '', entries
end

--- The two parts of a message, and whether it is in the log; nothing if it is nowhere.
function places.find(q, id)
  if not places.is_id(id) then return nil end
  local entry = redis.call('XRANGE', q.log, id, id)[1]
  local joined = not entry and redis.call('HGET', q.detached, id)
  if joined then return loose.split(joined), false end
  return entry and entry[2], true
end

--- In which of its sets a message is now, with its score in each; and its own place among them.
function places.of(q, id, in_log)
  local at = {expiry = redis.call('ZSCORE', q.expiry, id), ahead = in_log and id > q.cursor}
  for _, set in ipairs(ASIDE) do
    at[set] = redis.call('ZSCORE', q[set], id)
  end
  at.home = at.ahead and 'log' or at.leases and 'leases' or at.delayed and 'delayed' or 'requeued'
  at.ready = at.home == 'log' or at.home == 'requeued'
  return at
end
