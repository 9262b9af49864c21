--- Duplicates: an id that was seen within `duplicate_window` is not stored again; nor is one, by a call that has a
-- window of its own, that such a call has stored less than its window ago.
--
-- An id stands with the time when it was last stored; behind a line feed, which no id has, with the time until which a
-- call wants it remembered.
local seen = {}

--- Whether a message with this id came within a window, or comes earlier in the same batch (its `twin`).
function seen.before(q, now, items, i, id)
  items.ids = items.ids or {}
  items.first, items.twin = items.first or {}, items.twin or {}
  items.twin[i] = items.first[id]
  if items.twin[i] then return true end
  local at = q.window and redis.call('ZSCORE', q.seen, id)
  if at and at + q.window > now then return true end
  local ends = q.remember and redis.call('ZSCORE', q.seen, '\n' .. id)
  if ends and tonumber(ends) > now then return true end
  items.first[id], items.ids[i] = i, id
  return false
end

--- Remember the ids of what came in, and forget some that are past the window. Returns how many were duplicates.
function seen.note(q, now, items)
  -- texts, because Redis would write out a number anew for each member
  local members, at = {}, q.window and string.format('%d', now)
  local ends = q.remember and string.format('%d', now + q.remember)
  for i, id in pairs(items.ids or {}) do
    if items.fate[i] ~= 'refused' then
      if at then members[#members + 1], members[#members + 2] = at, id end
      if ends then members[#members + 1], members[#members + 2] = ends, '\n' .. id end
    end
  end
  if #members > 0 then
    redis.call('ZADD', q.seen, unpack(members))
    seen.forget(q, now, #members)
  end
  local duplicates = 0
  for _, fate in pairs(items.fate) do
    if fate == 'duplicate' then duplicates = duplicates + 1 end
  end
  return duplicates
end

--- Forget up to `most` ids that are past their windows. Returns how many.
function seen.forget(q, now, most)
  local old = redis.call('ZRANGEBYSCORE', q.seen, '-inf', now - (q.window or 0), 'LIMIT', 0, most)
  if #old > 0 then redis.call('ZREM', q.seen, unpack(old)) end
  return #old
end
