--- Duplicates: a message id within a window is not stored again. The option `duplicate_window` is the window of a
-- queue. A call may bring a window of its own; it sees the ids of calls with a window, too.
--
-- The key `dedup` has the ids of the queue's window. `dedup_ids` has those of calls, and `dedup_windows` one line for
-- each call with the end of its window, so that they are cheap to add and are forgotten together. An id in `dedup_ids`
-- is known unless some window has ended; then it may belong to that window, which is closed first. Ids are stored as
-- dedup names, `;<length>;;<id>`, as they are in headers.
--
-- @use memory
local dedup = {}
local OVER = 2000

--- Mark the duplicates in a batch: ids within a window, and ids that came earlier in the batch (`first_with_id`).
function dedup.mark_duplicates(q, now, items)
  local places, names, first = {}, {}, {}
  for i = 2, 2 * items.n, 2 do
    local name = items.dedup_name[i]
    if name then places[#places + 1], names[#names + 1] = i, name end
  end
  local known = dedup.known(q, now, names)
  items.new_names, items.first_with_id = {}, {}
  for k, i in ipairs(places) do
    local name = names[k]
    items.first_with_id[i] = first[name]
    if not first[name] and not known[k] then
      first[name], items.new_names[i] = i, name
    else
      if not items.outcome[i] then
        items.count, items.size = items.count - 1, items.size - #items.words[i]
      end
      items.outcome[i] = 'duplicate'
    end
  end
end

--- The positions of the names that are within a window.
function dedup.known(q, now, names)
  local known = q.remember and dedup.known_to_calls(q, now, names) or {}
  if q.window then
    for k, at in ipairs(redis.call('ZMSCORE', q.dedup, unpack(names))) do
      if at and at + q.window > now then known[k] = true end
    end
  end
  return known
end

--- Remember the ids of a stored batch. Returns the number of duplicates.
function dedup.note(q, now, items)
  local names, duplicates = items.dedup_names or {}, 0
  for i = 2, items.new_names and 2 * items.n or 0, 2 do
    if items.outcome[i] == 'duplicate' then
      duplicates = duplicates + 1
    elseif items.outcome[i] ~= 'refused' then
      names[#names + 1] = items.new_names[i]
    end
  end
  if #names > 0 then
    if q.window then dedup.remember(q, now, names) end
    if q.remember then dedup.open_window(q, now, names) end
    dedup.forget(q, now, #names)
  end
  return duplicates
end

--- Remember names for the window of the queue.
function dedup.remember(q, now, names)
  -- text, since Redis would format a number again for each member
  local members, at = {}, string.format('%d', now)
  for k, name in ipairs(names) do
    members[2 * k - 1], members[2 * k] = at, name
  end
  redis.call('ZADD', q.dedup, unpack(members))
end

--- Forget up to `most` names past `duplicate_window`, and about as many of calls. Returns the number of both.
function dedup.forget(q, now, most)
  local old = redis.call('ZRANGEBYSCORE', q.dedup, '-inf', now - (q.window or 0), 'LIMIT', 0, most)
  if #old > 0 then redis.call('ZREM', q.dedup, unpack(old)) end
  return #old + dedup.close_windows(q, now, most)
end

--- The positions of the names that are within a window of a call.
function dedup.known_to_calls(q, now, names)
  local known = {}
  for k, is_known in ipairs(redis.call('SMISMEMBER', q.dedup_ids, unpack(names))) do
    if is_known == 1 then known[k] = true end
  end
  if next(known) then q.retry = dedup.drop_expired(q, now) end
  return known
end

--- Close ended windows. Returns true if there were any: then the call does nothing else, and the client repeats it.
function dedup.drop_expired(q, now)
  if redis.call('ZCOUNT', q.dedup_windows, '-inf', now) == 0 then
    return false
  end
  memory.must_ask(q)
  dedup.close_windows(q, now, OVER)
  return true
end

--- Remember unknown names until the window of the call ends.
function dedup.open_window(q, now, names)
  redis.call('SADD', q.dedup_ids, unpack(names))
  redis.call('ZADD', q.dedup_windows, string.format('%d', now + q.remember), table.concat(names, '\n'))
end

--- Close ended windows until `most` names or more are forgotten. Returns the number of names.
function dedup.close_windows(q, now, most)
  local count = 0
  while count < most do
    local line = redis.call('ZRANGEBYSCORE', q.dedup_windows, '-inf', now, 'LIMIT', 0, 1)[1]
    if not line then break end
    local names = dedup.split_line(line)
    redis.call('ZREM', q.dedup_windows, line)
    if #names > 0 then redis.call('SREM', q.dedup_ids, unpack(names)) end
    count = count + #names
  end
  return count
end

--- The names in a line. A name begins with its length, so it may contain a line feed.
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
