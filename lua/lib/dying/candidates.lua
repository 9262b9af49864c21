--- Messages whose time may be over, from each of the three orders in which they stand. A table takes them: `ids`, and by
-- id the deadline in force (`at`) and the entry, if it was read. Beyond `limit` there may be others that come first.
--
-- @use message_ttl ready stale budget
local candidates = {}

--- Those past retention: the head of the queue. What was not read of it has a later deadline than all that was.
function candidates.retained(q, most, found, upto)
  if not q.message_ttl then return end
  budget.keep_half()
  local kept, all = ready.read(q, most, upto - q.message_ttl)
  budget.release()
  for _, entry in ipairs(kept) do
    candidates.add(found, entry[1], message_ttl.deadline(q, entry[1], entry[2][1]), entry)
  end
  found.kept = kept
  if not all then
    found.full = true
    found.limit = #kept > 0 and tonumber(string.sub(kept[#kept][1], 1, 13)) + q.message_ttl
  end
end

--- Those whose own deadline has passed. One that the budget does not reach ends the list in its place.
function candidates.indexed(q, found, due)
  local ids, score = {}, {}
  for i = 1, #due, 2 do
    if not found.at[due[i]] then ids[#ids + 1], score[due[i]] = due[i], tonumber(due[i + 1]) end
  end
  if not budget.is_open() then budget.renew() end
  local own, looked = stale.read(q, q.expiry, ids)
  for _, entry in ipairs(own) do
    candidates.add(found, entry[1], message_ttl.deadline(q, entry[1], entry[2][1]), entry)
  end
  for i = looked + 1, #ids do
    local kept = q.message_ttl and string.sub(ids[i], 1, 13) + q.message_ttl or score[ids[i]]
    candidates.add(found, ids[i], math.min(kept, score[ids[i]]))
  end
end

--- Delayed ones, where others are over too; alone they die as they come back, in this order. Those that live are read in
-- vain: of the dead behind more of these than one call reads the order is not exact.
function candidates.delayed(q, now, found, back)
  local ids, some = {}, false
  if #found.ids == 0 then return end
  for i = 1, #back, 2 do
    ids[#ids + 1] = back[i]
  end
  local entries, looked = stale.read(q, q.delayed, ids)
  for _, entry in ipairs(entries) do
    if message_ttl.is_over(q, now, entry) then
      candidates.add(found, entry[1], message_ttl.deadline(q, entry[1], entry[2][1]), entry)
      found.away[entry[1]], some = true, true
    end
  end
  if some and (looked < #ids or found.cut) then
    found.full = true
    found.limit = math.min(found.limit or math.huge, tonumber(back[2 * looked]))
  end
end

function candidates.add(found, id, at, entry)
  found.ids[#found.ids + 1], found.at[id], found.entry[id] = id, at, entry
end
