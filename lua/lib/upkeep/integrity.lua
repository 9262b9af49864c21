--- Integrity: where each message has to be, the check of a message, and the repair of damage. A check adds its findings
-- to a plan. A repair carries out the whole plan.
--
-- @use log budget message history
local integrity = {}

--- The right cursor and last sequence, given the present ones: no message lies beyond them.
function integrity.bounds(q, cursor, last)
  local info = redis.call('EXISTS', q.log) == 1 and redis.call('XINFO', 'STREAM', q.log) or {}
  last = log.is_seq(last) and last or '0-0'
  for i = 1, #info, 2 do
    local top = info[i] == 'last-generated-id' and info[i + 1]
    if log.is_seq(top) and top > last then last = top end
  end
  return log.is_seq(cursor) and cursor <= last and cursor or last, last
end

--- The record and the size of each part as one text. It differs after every change that a command can make.
function integrity.fingerprint(q)
  local fields, lines = redis.call('HGETALL', q.meta), {}
  for i = 1, #fields, 2 do
    lines[#lines + 1] = fields[i] .. '=' .. fields[i + 1]
  end
  table.sort(lines)
  for set in each('sets') do
    lines[#lines + 1] = redis.call('ZCARD', q[set.part])
  end
  return table.concat(lines, '\n') .. string.format('\n%d %d %d', redis.call('XLEN', q.log),
    redis.call('HLEN', q.detached), redis.call('HLEN', q.failures))
end

--- About `most` sequences of a part after `after`, and the start of the next page (empty: none). For the log also the
-- header and the body of each, by sequence.
function integrity.page(q, part, after, most)
  local seqs, entries = {}, {}
  if part == 'log' then
    local page, all = log.range(q, after == '' and '0-0' or after, '+', most)
    for i, entry in ipairs(page) do
      seqs[i], entries[entry[1]] = entry[1], entry[2]
    end
    return seqs, all and '' or seqs[#seqs], entries
  end
  -- HSCAN returns messages of `detached` with their sequences; those of other parts are read one by one
  most = budget.page_size(q, q.large_upto, most)
  local scan = (part == 'detached' or part == 'failures') and 'HSCAN' or 'ZSCAN'
  local cursor, items = unpack(redis.call(scan, q[part], after == '' and '0' or after, 'COUNT', most))
  for i = 1, #items, 2 do
    seqs[#seqs + 1] = items[i]
  end
  return seqs, cursor ~= '0' and cursor or '', entries
end

--- The header and the body of a message, and whether it is in the log; nil if it is nowhere.
function integrity.find(q, seq)
  if not log.is_seq(seq) then return nil end
  local entry, in_log = log.find(q, seq)
  return entry and entry[2], in_log
end

--- The sets that have a message, with its score in each, and its right place.
function integrity.locate(q, seq, in_log)
  local at = {expiry = redis.call('ZSCORE', q.expiry, seq), ahead = in_log and seq > q.cursor}
  for set in each('behind_cursor') do
    at[set.part] = redis.call('ZSCORE', q[set.part], seq)
  end
  local home = at.ahead and 'log'
  for state in each('states') do
    home = home or at[state.part] and state.part
  end
  at.home = home or 'requeued'
  at.ready = at.home == 'log' or at.home == 'requeued'
  return at
end

--- An empty plan: for each part the sequences to remove, and the members to add to `requeued` and `expiry`.
function integrity.plan()
  local plan = {failures = {}, back = {}, deadlines = {}}
  for set in each('sets') do
    plan[set.part] = {}
  end
  return plan
end

--- Check one message; `parts` are its header and body, if they are known. Returns a word for the damage (nil: none),
-- and the bytes of the body if the message is ready.
--   orphan        a set has it, but no message does     duplicate  it is in two places
--   unreachable   no place has it: nobody would get it  deadline   `expiry` differs from its header
--   header        its header is damaged; that cannot be repaired
function integrity.check(q, seq, plan, parts)
  local in_log = true
  if not parts then parts, in_log = integrity.find(q, seq) end
  if not parts then return integrity.drop(q, seq, plan) end
  local at, wrong = integrity.locate(q, seq, in_log), not history.is_sound(parts[1]) and 'header' or nil
  local own = at.ready and message.deadline(parts[1]) or nil
  if own ~= tonumber(at.expiry or '') then
    local into = own and plan.deadlines or plan.expiry
    wrong, into[#into + 1], into[#into + 2] = 'deadline', own or seq, own and seq
  end
  for set in each('behind_cursor') do
    local into = plan[set.part]
    if at[set.part] and set.part ~= at.home then
      wrong, into[#into + 1] = 'duplicate', seq
    end
  end
  local ms = log.ms(seq)
  if at.home == 'requeued' and tonumber(at.requeued or '') ~= ms then
    wrong, plan.back[#plan.back + 1], plan.back[#plan.back + 2] = 'unreachable', ms, seq
  end
  return wrong, at.ready and #parts[2] or nil
end

--- Plan the removal of a sequence without a message from all sets.
function integrity.drop(q, seq, plan)
  local wrong
  for set in each('sets') do
    local into = plan[set.part]
    if redis.call('ZSCORE', q[set.part], seq) then
      wrong, into[#into + 1] = 'orphan', seq
    end
  end
  if redis.call('HEXISTS', q.failures, seq) == 1 then
    wrong, plan.failures[#plan.failures + 1] = 'orphan', seq
  end
  return wrong
end

--- Carry out a plan. Removals come first.
function integrity.repair(q, plan)
  for set in each('sets') do
    local seqs = plan[set.part]
    if #seqs > 0 then redis.call('ZREM', q[set.part], unpack(seqs)) end
  end
  if #plan.failures > 0 then redis.call('HDEL', q.failures, unpack(plan.failures)) end
  if #plan.back > 0 then redis.call('ZADD', q.requeued, unpack(plan.back)) end
  if #plan.deadlines > 0 then redis.call('ZADD', q.expiry, unpack(plan.deadlines)) end
end
