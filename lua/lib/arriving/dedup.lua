--- Duplicates: an id that was seen within `duplicate_window` is not stored again; nor is one, by a call that has a
-- window of its own, that such a call has stored less than its window ago. Ids go by their names, `;<length>;;<id>`, as
-- headers have them.
--- Windows of calls: the names that a call wants remembered, for as long as it says.
--
-- All these names are in the set `named`. In `windows` stand those of one call together, a line each, with the end of its
-- window; so they cost a call little, and are forgotten together. What is in `named` is known, unless some window is
-- over: then it may be one of those, and they go first.
local dedup = {}
local OVER = 2000

--- Find the messages whose id came within a window, or comes earlier in the same batch (in its `twin`).
function dedup.mark_duplicates(q, now, items)
  local places, names, first = {}, {}, {}
  for i = 2, 2 * items.n, 2 do
    local name = items.name[i]
    if name then places[#places + 1], names[#names + 1] = i, name end
  end
  local known = dedup.known(q, now, names)
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
function dedup.known(q, now, names)
  local known = q.remember and dedup.known_to_calls(q, now, names) or {}
  if q.window then
    for k, at in ipairs(redis.call('ZMSCORE', q.dedup, unpack(names))) do
      if at and at + q.window > now then known[k] = true end
    end
  end
  return known
end

--- Remember the names of what came in. Returns how many messages were duplicates.
function dedup.note(q, now, items)
  local names, duplicates = items.names or {}, 0
  for i = 2, items.new and 2 * items.n or 0, 2 do
    if items.fate[i] == 'duplicate' then
      duplicates = duplicates + 1
    elseif items.fate[i] ~= 'refused' then
      names[#names + 1] = items.new[i]
    end
  end
  if #names > 0 then
    if q.window then dedup.remember(q, now, names) end
    if q.remember then dedup.open_window(q, now, names) end
    dedup.forget(q, now, #names)
  end
  return duplicates
end

function dedup.remember(q, now, names)
  -- a text, because Redis would write out a number anew for each member
  local members, at = {}, string.format('%d', now)
  for k, name in ipairs(names) do
    members[2 * k - 1], members[2 * k] = at, name
  end
  redis.call('ZADD', q.dedup, unpack(members))
end

--- Forget up to `most` names that are past `duplicate_window`, and about as many of calls. Returns how many.
function dedup.forget(q, now, most)
  local old = redis.call('ZRANGEBYSCORE', q.dedup, '-inf', now - (q.window or 0), 'LIMIT', 0, most)
  if #old > 0 then redis.call('ZREM', q.dedup, unpack(old)) end
  return #old + dedup.close_windows(q, now, most)
end

--- Which of these names calls want remembered.
function dedup.known_to_calls(q, now, names)
  local known = {}
  for k, found in ipairs(redis.call('SMISMEMBER', q.dedup_ids, unpack(names))) do
    if found == 1 then known[k] = true end
  end
  if next(known) then q.retry = dedup.drop_expired(q, now) end
  return known
end

--- Close windows that are over. If there were any, that is all that the call does; it has to be made again.
function dedup.drop_expired(q, now)
  if redis.call('ZCOUNT', q.dedup_windows, '-inf', now) == 0 then
    return false
  end
  redis.call('HSET', q.meta, 'last_id', q.last_id) -- the first write is one that Redis refuses when memory is full
  dedup.close_windows(q, now, OVER)
  return true
end

--- Remember names of which none is known.
function dedup.open_window(q, now, names)
  redis.call('SADD', q.dedup_ids, unpack(names))
  redis.call('ZADD', q.dedup_windows, string.format('%d', now + q.remember), table.concat(names, '\n'))
end

--- Close windows that are over and forget their names, until that are `most` or more. Returns how many.
function dedup.close_windows(q, now, most)
  local count = 0
  while count < most do
    local over = redis.call('ZRANGEBYSCORE', q.dedup_windows, '-inf', now, 'LIMIT', 0, 1)[1]
    if not over then break end
    local names = dedup.split_line(over)
    redis.call('ZREM', q.dedup_windows, over)
    if #names > 0 then redis.call('SREM', q.dedup_ids, unpack(names)) end
    count = count + #names
  end
  return count
end

--- The names in a line. A name says its length, so it may hold a line feed.
function dedup.split_line(line)
  local names, at = {}, 1
  while at <= #line do
    local length, start = string.match(line, '^;(%d+);;()', at)
    if not start then break end
    names[#names + 1] = string.sub(line, at, start + length - 1)
    at = start + length + 1
  end
  return names
end
