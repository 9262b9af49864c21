--- Taking ready messages out, in order: first those that came back, then what lies ahead of the cursor.
-- A message whose time is over is never among them, swept or not.
--
-- @use lifetime log queue ready dead_letter lease expiry
local claim = {}
local BYTES = 4194304

--- A message that was handed to a waiting consumer, if the ticket still holds.
function claim.ticket(q, now, ticket, taken)
  local id, token = string.match(ticket, '^(%S+) (%S+)$')
  if id and lease.held(q, now, {id, token}, '')[1] then
    taken[#taken + 1] = log.find(q, id)
  end
end

--- Sort entries into taken and expired, until enough are taken or the answer gets too large.
-- Returns whether another one may be taken.
function claim.sort(q, now, most, entries, state)
  for _, entry in ipairs(entries) do
    if #state.taken >= most or (state.size >= BYTES and #state.taken > 0) then
      return false
    end
    if (q.message_ttl or entry[2][1] ~= '') and lifetime.is_over(q, now, entry) then
      state.over[#state.over + 1] = entry
    else
      state.taken[#state.taken + 1] = entry
      state.size = state.size + #entry[2][2]
    end
    if entry[1] > q.cursor then
      q.cursor, state.passed = entry[1], state.passed + 1
    end
  end
  return #state.taken < most
end

--- Take up to `most` messages. Nothing is written yet but the cursor in memory.
function claim.take(q, now, most, state)
  local want = log.readable(q, most - #state.taken)
  if want <= 0 then return end
  local ids, open = redis.call('ZRANGE', q.returned, 0, want - 1), true
  if #ids > 0 then
    open, state.returned = claim.sort(q, now, most, rare(log).read(q, ids), state), true
  end
  if open and #ids < want then
    local ahead = redis.call('XRANGE', q.log, '(' .. q.cursor, '+', 'COUNT', want - #ids)
    claim.sort(q, now, most, ahead, state)
    state.emptied = #ahead < want - #ids
  end
end

--- A leased message leaves the index of deadlines. ZREM is called in any case: it is allowed when memory is full, and
-- what follows it then is too.
function claim.unindex(q, entries)
  local ids = {}
  for _, entry in ipairs(entries) do
    if entry[2][1] ~= '' then ids[#ids + 1] = entry[1] end
  end
  redis.call('ZREM', q.expiry, unpack(#ids > 0 and ids or {''}))
end

--- Carry out what `take` decided: the expired are buried, the taken are no longer ready.
function claim.settle(q, now, state)
  local ids = {}
  if state.emptied then
    q.holes = 0
  elseif q.holes > 0 and state.passed > 0 then
    rare(ready).pass_holes(q, state.passed)
  end
  for i, entry in ipairs(state.taken) do
    ids[i] = entry[1]
  end
  if #ids > 0 then
    claim.unindex(q, state.taken)
    if state.returned then redis.call('ZREM', q.returned, unpack(ids)) end
  end
  q.bytes = q.bytes - state.size
  if #state.over > 0 then
    rare(expiry).bury(q, now, {}, state.over)
  end
  return ids
end

--- A consumer that stops waiting takes what was handed to it after it last looked.
function claim.late_ticket(q, now, most, taken)
  if #taken < most and redis.call('LLEN', q.bell) > 0 then
    claim.ticket(q, now, redis.call('LPOP', q.bell), taken)
  end
end
