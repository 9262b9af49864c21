--- Duplicates: an id that was seen within `duplicate_window` is not stored again; nor is one, by a call that has a
-- window of its own, that such a call has stored less than its window ago.
--
-- An id stands with the time when it was last stored; behind a line feed, which no id has, with the time until which a
-- call wants it remembered.
local seen = {}

--- Find the messages whose id came within a window, or comes earlier in the same batch (in its `twin`).
function seen.sift(q, now, items)
  local places, names, first = {}, {}, {}
  for i = 2, 2 * items.n, 2 do
    local id = items.name[i]
    if id then places[#places + 1], names[#names + 1] = i, id end
  end
  local known = seen.known(q, now, names)
  items.ids, items.twin = {}, {}
  for k, i in ipairs(places) do
    local id = names[k]
    items.twin[i] = first[id]
    if not first[id] and not known[k] then
      first[id], items.ids[i] = i, id
    else
      if not items.fate[i] then
        items.count, items.size = items.count - 1, items.size - #items.body[i]
      end
      items.fate[i] = 'duplicate'
    end
  end
end

--- Which of these ids came within a window.
function seen.known(q, now, names)
  local known = {}
  for k, at in ipairs(q.window and redis.call('ZMSCORE', q.seen, unpack(names)) or {}) do
    known[k] = at and at + q.window > now
  end
  if q.remember then
    local marked = {}
    for k, id in ipairs(names) do marked[k] = '\n' .. id end
    for k, ends in ipairs(redis.call('ZMSCORE', q.seen, unpack(marked))) do
      known[k] = known[k] or ends and tonumber(ends) > now
    end
  end
  return known
end

--- Remember the ids of what came in, and forget some that are past the window. Returns how many were duplicates.
function seen.note(q, now, items)
  -- texts, because Redis would write out a number anew for each member
  local members, at = {}, q.window and string.format('%d', now)
  local ends = q.remember and string.format('%d', now + q.remember)
  for i = 2, 2 * items.n, 2 do
    local id = items.ids[i]
    if id and items.fate[i] ~= 'refused' then
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
