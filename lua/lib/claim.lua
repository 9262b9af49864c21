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
    if lifetime.is_over(q, now, entry) then
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
  local ids = redis.call('ZRANGE', q.returned, 0, want - 1)
  local returned = log.read(q, ids)
  local open = claim.sort(q, now, most, returned, state)
  state.returned = #ids > 0
  if open and #ids < want then
    local ahead = redis.call('XRANGE', q.log, '(' .. q.cursor, '+', 'COUNT', want - #ids)
    claim.sort(q, now, most, ahead, state)
    state.emptied = #ahead < want - #ids
  end
end

--- Carry out what `take` decided: the expired are buried, the taken are no longer ready.
function claim.settle(q, now, state)
  local ids = {}
  if state.emptied then
    q.holes = 0
  elseif state.passed > 0 then
    ready.pass_holes(q, state.passed)
  end
  for i, entry in ipairs(state.taken) do
    ids[i] = entry[1]
  end
  if #ids > 0 then
    redis.call('ZREM', q.expiry, unpack(ids))
    if state.returned then redis.call('ZREM', q.returned, unpack(ids)) end
  end
  q.bytes = q.bytes - state.size
  expiry.bury(q, now, {}, state.over)
  return ids
end

--- A consumer that stops waiting takes what was handed to it after it last looked.
function claim.late_ticket(q, now, most, taken)
  if #taken < most and redis.call('LLEN', q.bell) > 0 then
    claim.ticket(q, now, redis.call('LPOP', q.bell), taken)
  end
end
