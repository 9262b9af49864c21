--- Windows of calls: the names that a call wants remembered, for as long as it says.
--
-- All these names are in the set `named`. In `windows` stand those of one call together, a line each, with the end of its
-- window; so they cost a call little, and are forgotten together. What is in `named` is known, unless some window is
-- over: then it may be one of those, and they go first.
local windows = {}
local OVER = 2000

--- Which of these names calls want remembered.
function windows.known(q, now, names)
  local known = {}
  for k, found in ipairs(redis.call('SMISMEMBER', q.dedup_ids, unpack(names))) do
    if found == 1 then known[k] = true end
  end
  if next(known) then q.retry = windows.catch_up(q, now) end
  return known
end

--- Close windows that are over. If there were any, that is all that the call does; it has to be made again.
function windows.catch_up(q, now)
  if redis.call('ZCOUNT', q.dedup_windows, '-inf', now) == 0 then
    return false
  end
  redis.call('HSET', q.meta, 'last_id', q.last_id) -- the first write is one that Redis refuses when memory is full
  windows.close(q, now, OVER)
  return true
end

--- Remember names of which none is known.
function windows.open(q, now, names)
  redis.call('SADD', q.dedup_ids, unpack(names))
  redis.call('ZADD', q.dedup_windows, string.format('%d', now + q.remember), table.concat(names, '\n'))
end

--- Close windows that are over and forget their names, until that are `most` or more. Returns how many.
function windows.close(q, now, most)
  local count = 0
  while count < most do
    local over = redis.call('ZRANGEBYSCORE', q.dedup_windows, '-inf', now, 'LIMIT', 0, 1)[1]
    if not over then break end
    local names = windows.split(over)
    redis.call('ZREM', q.dedup_windows, over)
    if #names > 0 then redis.call('SREM', q.dedup_ids, unpack(names)) end
    count = count + #names
  end
  return count
end

--- The names in a line. A name says its length, so it may hold a line feed.
function windows.split(line)
  local names, at = {}, 1
  while at <= #line do
    local length, start = string.match(line, '^;(%d+);;()', at)
    if not start then break end
    names[#names + 1] = string.sub(line, at, start + length - 1)
    at = start + length + 1
  end
  return names
end
