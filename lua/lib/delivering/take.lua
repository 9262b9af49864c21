--- Taking ready messages: first those that came back, then those ahead of the cursor. Expired ones are never among
-- them.
--
-- @use message_ttl log expiry stale
local take = {}
local TRIES = 250

--- Split entries into taken and expired ones.
function take.split_expired(q, now, entries, state)
  local taken, seqs, with_header, size = state.taken, state.seqs, state.with_header, state.size
  for i = 1, #entries do
    local entry = entries[i]
    local seq, parts = entry[1], entry[2]
    if (parts[1] ~= '' or q.message_ttl) and message_ttl.is_over(q, now, entry) then
      state.expired[#state.expired + 1] = entry
    else
      taken[#taken + 1], seqs[#seqs + 1], size = entry, seq, size + #parts[2]
      if parts[1] ~= '' then with_header[#with_header + 1] = seq end
    end
  end
  state.size = size
end

--- Choose up to `most` messages. Nothing is written but the removal of stale sequences.
function take.choose(q, now, most, state)
  local left = most - #state.taken
  if left > 0 and redis.call('EXISTS', q.requeued) == 1 then left = lazy(take).from_requeued(q, now, left, state) end
  if left <= 0 then return end
  local ahead, all = log.range(q, q.cursor, '+', left)
  local passed = #ahead
  take.split_expired(q, now, ahead, state)
  if passed > 0 then state.cursor = ahead[passed][1] end
  if all then state.emptied = true end
end

--- Choose messages that came back. Returns the number still wanted: 0 unless no more of these are left. While messages
-- for a hand-off are chosen (`older`), nothing may be written.
function take.from_requeued(q, now, left, state)
  local from, tries = 0, 0
  state.requeued = true
  repeat
    local seqs = redis.call('ZRANGE', q.requeued, from, from + left - 1)
    local entries, looked = stale.read(q, q.requeued, seqs)
    if not state.older then stale.forget(q) end
    take.split_expired(q, now, entries, state)
    if #seqs < left and looked == #seqs then return left - #entries end
    if state.older and q.stale then return 0 end
    from, left, tries = from + #entries, left - #entries, tries + 1
  until left == 0 or looked < #seqs or tries == TRIES
  return 0
end

--- Apply the choice: taken messages are no longer ready, and expired ones die. If a sweep left messages that must die
-- first (`more`), they wait. The first write is always a ZREM, which Redis allows without free memory.
function take.apply(q, now, state, more)
  local with_header = state.with_header
  q.cursor = state.cursor or q.cursor
  redis.call('ZREM', q.expiry, unpack(#with_header > 0 and with_header or {''}))
  if state.requeued and #state.seqs > 0 then
    redis.call('ZREM', q.requeued, unpack(state.seqs))
  end
  q.ready_bytes = q.ready_bytes - state.size
  if #state.expired > 0 then
    lazy(expiry).bury_or_delay(q, now, state.expired, more)
  end
end
