--- Duplicates: an id that was seen within `duplicate_window` is not stored again.
local seen = {}

--- Whether a message with this id came within the window, or comes earlier in the same batch (its `twin`).
function seen.before(q, now, items, i, id)
  items.ids = items.ids or {}
  items.first, items.twin = items.first or {}, items.twin or {}
  items.twin[i] = items.first[id]
  if items.twin[i] then return true end
  local at = redis.call('ZSCORE', q.seen, id)
  if at and at + q.window > now then return true end
  items.first[id], items.ids[i] = i, id
  return false
end

--- Remember the ids of what came in, and forget some that are past the window. Returns how many were duplicates.
function seen.note(q, now, items)
  local members = {}
  for i, id in pairs(items.ids or {}) do
    if items.fate[i] ~= 'refused' then
      members[#members + 1], members[#members + 2] = now, id
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

--- Forget up to `most` ids that are past the window. Returns how many.
function seen.forget(q, now, most)
  local old = redis.call('ZRANGEBYSCORE', q.seen, '-inf', now - q.window, 'LIMIT', 0, most)
  if #old > 0 then redis.call('ZREM', q.seen, unpack(old)) end
  return #old
end
