--- Where each message has to be, as the table of states says: for those who look for damage, and mend it.
--- What is wrong with a message's places, and putting it right. What is decided goes into a plan, which is carried out
-- as a whole.
--
-- @use log budget message history
local integrity = {}
local ASIDE = {'leases', 'delayed', 'requeued'}
local SETS = {'leases', 'delayed', 'requeued', 'expiry'}

function integrity.is_seq(id)
  return id == '0-0' or type(id) == 'string' and #id == 20 and string.find(id, '^%d+%-%d+$') ~= nil
end

--- Where the cursor and the last sequence have to be, given where they are: no message lies beyond them.
function integrity.bounds(q, cursor, last)
  local facts = redis.call('EXISTS', q.log) == 1 and redis.call('XINFO', 'STREAM', q.log) or {}
  last = integrity.is_seq(last) and last or '0-0'
  for i = 1, #facts, 2 do
    local top = facts[i] == 'last-generated-id' and facts[i + 1]
    if integrity.is_seq(top) and top > last then last = top end
  end
  return integrity.is_seq(cursor) and cursor <= last and cursor or last, last
end

--- The record, and how much each part holds, as one text: it differs after all that a command can have changed.
function integrity.fingerprint(q)
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
function integrity.page(q, part, after, most)
  local ids, entries = {}, {}
  if part == 'log' then
    local page, all = log.range(q, after == '' and '0-0' or after, '+', most)
    for i, entry in ipairs(page) do
      ids[i], entries[entry[1]] = entry[1], entry[2]
    end
    return ids, all and '' or ids[#ids], entries
  end
  -- Redis gives the messages of `detached` with their ids; those that other parts name are read one by one
  most = budget.page_size(q, q.large_upto, most)
  local scan = (part == 'detached' or part == 'failures') and 'HSCAN' or 'ZSCAN'
  local found = redis.call(scan, q[part], after == '' and '0' or after, 'COUNT', most)
  for i = 1, #found[2], 2 do
    ids[#ids + 1] = found[2][i]
  end
  return ids, found[1] ~= '0' and found[1] or '', entries
end

--- The two parts of a message, and whether it is in the log; nothing if it is nowhere.
function integrity.find(q, id)
  if not integrity.is_seq(id) then return nil end
  local entry = redis.call('XRANGE', q.log, id, id)[1]
  local joined = not entry and redis.call('HGET', q.detached, id)
  if joined then return log.unpack(joined), false end
  return entry and entry[2], true
end

--- In which of its sets a message is now, with its score in each; and its own place among them.
function integrity.locate(q, id, in_log)
  local at = {expiry = redis.call('ZSCORE', q.expiry, id), ahead = in_log and id > q.cursor}
  for _, set in ipairs(ASIDE) do
    at[set] = redis.call('ZSCORE', q[set], id)
  end
  at.home = at.ahead and 'log' or at.leases and 'leases' or at.delayed and 'delayed' or 'requeued'
  at.ready = at.home == 'log' or at.home == 'requeued'
  return at
end

function integrity.plan()
  return {leases = {}, delayed = {}, requeued = {}, expiry = {}, failures = {}, back = {}, deadlines = {}}
end

--- Look at one id; `parts` are those of its entry in the log, if they are known. Returns a word for what is wrong (nil:
-- nothing), and the size of the body if the message is ready.
--   gone      it is in a set, and nowhere else           doubled   it is in two places
--   lost      it is in no place: nobody would get it     deadline  `expiry` does not say what its header says
--   header    its header is damaged; that cannot be mended
function integrity.check(q, id, plan, parts)
  local in_log = true
  if not parts then parts, in_log = integrity.find(q, id) end
  if not parts then return integrity.drop(q, id, plan) end
  local at, wrong = integrity.locate(q, id, in_log), not history.is_sound(parts[1]) and 'header' or nil
  local own = at.ready and message.deadline(parts[1]) or nil
  if own ~= tonumber(at.expiry or '') then
    local into = own and plan.deadlines or plan.expiry
    wrong, into[#into + 1], into[#into + 2] = 'deadline', own or id, own and id
  end
  for i = 1, 3 do
    local set = SETS[i]
    if at[set] and set ~= at.home then
      wrong, plan[set][#plan[set] + 1] = 'duplicate', id
    end
  end
  local ms = tonumber(string.sub(id, 1, 13))
  if at.home == 'requeued' and tonumber(at.requeued or '') ~= ms then
    wrong, plan.back[#plan.back + 1], plan.back[#plan.back + 2] = 'unreachable', ms, id
  end
  return wrong, at.ready and #parts[2] or nil
end

--- No message has this id: it leaves all sets.
function integrity.drop(q, id, plan)
  local wrong
  for _, set in ipairs(SETS) do
    if redis.call('ZSCORE', q[set], id) then
      wrong, plan[set][#plan[set] + 1] = 'orphan', id
    end
  end
  if redis.call('HEXISTS', q.failures, id) == 1 then
    wrong, plan.failures[#plan.failures + 1] = 'orphan', id
  end
  return wrong
end

--- Carry out a plan. What is taken out comes first.
function integrity.repair(q, plan)
  for _, set in ipairs(SETS) do
    if #plan[set] > 0 then redis.call('ZREM', q[set], unpack(plan[set])) end
  end
  if #plan.failures > 0 then redis.call('HDEL', q.failures, unpack(plan.failures)) end
  if #plan.back > 0 then redis.call('ZADD', q.requeued, unpack(plan.back)) end
  if #plan.deadlines > 0 then redis.call('ZADD', q.expiry, unpack(plan.deadlines)) end
end
