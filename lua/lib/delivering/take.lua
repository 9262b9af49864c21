--- Taking ready messages out, in order: first those that came back, then what lies ahead of the cursor.
-- A message whose time is over is never among them, swept or not.
--
-- @use message_ttl log expiry stale
local take = {}
local TRIES = 250

--- Sort entries into taken and expired.
function take.split_expired(q, now, entries, state)
  local taken, ids, own, size = state.taken, state.ids, state.own, state.size
  for i = 1, #entries do
    local entry = entries[i]
    local id, parts = entry[1], entry[2]
    if (parts[1] ~= '' or q.message_ttl) and message_ttl.is_over(q, now, entry) then
      state.over[#state.over + 1] = entry
    else
      taken[#taken + 1], ids[#ids + 1], size = entry, id, size + #parts[2]
      if parts[1] ~= '' then own[#own + 1] = id end
    end
  end
  state.size = size
end

--- Take up to `most` messages. Nothing is written yet but the cursor in memory, and ids without a message go.
function take.choose(q, now, most, state)
  local want = most - #state.taken
  if want > 0 and redis.call('EXISTS', q.requeued) == 1 then want = lazy(take).from_requeued(q, now, want, state) end
  if want <= 0 then return end
  local ahead, all = log.range(q, q.cursor, '+', want)
  local passed = #ahead
  take.split_expired(q, now, ahead, state)
  if passed > 0 then q.cursor = ahead[passed][1] end
  if all then state.emptied = true end
end

--- Take what came back. Returns how many messages are still wanted: 0, unless there are no more of these. While it is only
-- decided who gets `older` messages, nothing may be written.
function take.from_requeued(q, now, want, state)
  local from, tries = 0, 0
  state.requeued = true
  repeat
    local ids = redis.call('ZRANGE', q.requeued, from, from + want - 1)
    local entries, looked = stale.read(q, q.requeued, ids)
    if not state.older then stale.forget(q) end
    take.split_expired(q, now, entries, state)
    if #ids < want and looked == #ids then return want - #entries end
    if state.older and q.stale then return 0 end
    from, want, tries = from + #entries, want - #entries, tries + 1
  until want == 0 or looked < #ids or tries == TRIES
  return 0
end

--- Carry out what `take` decided: the taken are no longer ready, the expired die, or wait for those that die before them
-- if a sweep has left such (`more`). The first write is always a ZREM: it is allowed when memory is full, and what
-- follows it then is too.
function take.apply(q, now, state, more)
  local own = state.own
  redis.call('ZREM', q.expiry, unpack(#own > 0 and own or {''}))
  if state.requeued and #state.ids > 0 then
    redis.call('ZREM', q.requeued, unpack(state.ids))
  end
  q.ready_bytes = q.ready_bytes - state.size
  if #state.over > 0 then
    lazy(expiry).bury_or_delay(q, now, state.over, more)
  end
end
