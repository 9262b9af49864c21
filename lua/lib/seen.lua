--- Duplicates: an id that was seen within `duplicate_window` is not stored again; nor is one, by a call that has a
-- window of its own, that such a call has stored less than its window ago. Ids go by their names, `;<length>;;<id>`, as
-- headers have them.
--
-- @use windows
local seen = {}

--- Find the messages whose id came within a window, or comes earlier in the same batch (in its `twin`).
function seen.sift(q, now, items)
  local places, names, first = {}, {}, {}
  for i = 2, 2 * items.n, 2 do
    local name = items.name[i]
    if name then places[#places + 1], names[#names + 1] = i, name end
  end
  local known = seen.known(q, now, names)
  items.new, items.twin = {}, {}
  for k, i in ipairs(places) do
    local name = names[k]
    items.twin[i] = first[name]
    if not first[name] and not known[k] then
      first[name], items.new[i] = i, name
    else
      if not items.fate[i] then
        items.count, items.size = items.count - 1, items.size - #items.words[i]
      end
      items.fate[i] = 'duplicate'
    end
  end
end

--- Which of these names came within a window.
function seen.known(q, now, names)
  local known = q.remember and windows.known(q, now, names) or {}
  if q.window then
    for k, at in ipairs(redis.call('ZMSCORE', q.dedup, unpack(names))) do
      if at and at + q.window > now then known[k] = true end
    end
  end
  return known
end

--- Remember the names of what came in. Returns how many messages were duplicates.
function seen.note(q, now, items)
  local names, duplicates = items.names or {}, 0
  for i = 2, items.new and 2 * items.n or 0, 2 do
    if items.fate[i] == 'duplicate' then
      duplicates = duplicates + 1
    elseif items.fate[i] ~= 'refused' then
      names[#names + 1] = items.new[i]
    end
  end
  if #names > 0 then
    if q.window then seen.remember(q, now, names) end
    if q.remember then windows.open(q, now, names) end
    seen.forget(q, now, #names)
  end
  return duplicates
end

function seen.remember(q, now, names)
  -- a text, because Redis would write out a number anew for each member
  local members, at = {}, string.format('%d', now)
  for k, name in ipairs(names) do
    members[2 * k - 1], members[2 * k] = at, name
  end
  redis.call('ZADD', q.dedup, unpack(members))
end

--- Forget up to `most` names that are past `duplicate_window`, and about as many of calls. Returns how many.
function seen.forget(q, now, most)
  local old = redis.call('ZRANGEBYSCORE', q.dedup, '-inf', now - (q.window or 0), 'LIMIT', 0, most)
  if #old > 0 then redis.call('ZREM', q.dedup, unpack(old)) end
  return #old + windows.close(q, now, most)
end
