--- Taking ready messages out, in order: first those that came back, then what lies ahead of the cursor.
-- A message whose time is over is never among them, swept or not.
--
-- @use lifetime log queue ready lease expiry
local claim = {}
local BYTES = 4194304

--- A message that was handed to a waiting consumer, if the ticket still holds.
function claim.ticket(q, now, ticket, state)
  local id, token = string.match(ticket, '^(%S+) (%S+)$')
  if id and lease.held(q, now, {token, 1, id}, '')[1] then
    state.taken[#state.taken + 1], state.ids[#state.ids + 1] = log.find(q, id), id
    state.shown = {id}
  end
end

--- Sort entries into taken and expired, until the answer gets too large. Returns how many were sorted.
function claim.sort(q, now, entries, state)
  local taken, ids, own, size = state.taken, state.ids, state.own, state.size
  for i = 1, #entries do
    local entry = entries[i]
    local id, parts = entry[1], entry[2]
    if size >= BYTES then
      return i - 1
    elseif (parts[1] ~= '' or q.message_ttl) and lifetime.is_over(q, now, entry) then
      state.over[#state.over + 1] = entry
    else
      taken[#taken + 1], ids[#ids + 1], size = entry, id, size + #parts[2]
      if parts[1] ~= '' then own[#own + 1] = id end
    end
    state.size = size
  end
  return #entries
end

--- Take up to `most` messages. Nothing is written yet but the cursor in memory.
function claim.take(q, now, most, state)
  local want, n = queue.readable(q, most - #state.taken), 0
  if want <= 0 then return end
  local back = redis.call('ZRANGE', q.returned, 0, want - 1)
  if #back > 0 then
    state.returned, n = true, claim.sort(q, now, rare(log).read(q, back), state)
  end
  if n == #back and n < want then
    local ahead = redis.call('XRANGE', q.log, '(' .. q.cursor, '+', 'COUNT', want - n)
    local passed = claim.sort(q, now, ahead, state)
    if passed > 0 then
      q.cursor = ahead[passed][1]
    end
    if #ahead < want - n then
      state.emptied = passed == #ahead
    end
  end
end

--- Carry out what `take` decided: the taken are no longer ready, the expired are buried. The first write is always a
-- ZREM: it is allowed when memory is full, and what follows it then is too.
function claim.settle(q, now, state)
  local own = state.own
  redis.call('ZREM', q.expiry, unpack(#own > 0 and own or {''}))
  if state.returned and #state.ids > 0 then
    redis.call('ZREM', q.returned, unpack(state.ids))
  end
  q.bytes = q.bytes - state.size
  if #state.over > 0 then
    rare(expiry).bury(q, now, {}, state.over)
  end
end

--- A consumer that stops waiting takes what was handed to it after it last looked. A hint may lie before the ticket, and
-- tickets that hold no longer.
function claim.late_ticket(q, now, most, state)
  for _ = 1, 10 do
    local ticket = #state.taken < most and not state.shown and redis.call('LPOP', q.bell)
    if not ticket then return end
    claim.ticket(q, now, ticket, state)
  end
end
