--- Giving memory back: a stream frees only whole nodes, so survivors among the expired keep 4 KB each alive.
-- When holes outnumber the messages ahead of the cursor, the survivors move to `loose`, one by one.
--
-- @use log loose queue ready
local compact = {}
local WORTH = 1000
local NODE, OVERHEAD = 4096, 200

--- Whether the log takes much more memory than its messages would one by one. Holes are only a hint at that: those that
-- the cursor passed, or whole nodes of them, cost nothing any more.
function compact.pays(q, total)
  local facts, at = redis.call('XINFO', 'STREAM', q.log), {}
  for i = 1, #facts, 2 do
    at[facts[i]] = facts[i + 1]
  end
  return at['radix-tree-keys'] * NODE > 1.5 * at.length * (q.bytes / total + OVERHEAD)
end

--- How many messages are ready, if holes outnumber those ahead of the cursor; else nil.
-- A queue that holds dead letters is left alone: its log is read by id range and must stay whole.
function compact.wanted(q)
  if q.holes <= WORTH or q.letters == '1' then return nil end
  local total = queue.ready(q)
  return q.holes > total - redis.call('ZCARD', q.returned) and total or nil
end

--- Move up to `most` messages from the cursor on. Returns how many, and whether more should.
-- A call that has swept (`busy`) leaves it to the next one, so that no call does both.
function compact.run(q, most, busy)
  local total = compact.wanted(q)
  if not total or busy then
    return 0, total ~= nil
  elseif total == redis.call('ZCARD', q.returned) or not compact.pays(q, total) then
    -- looked at again before the messages ahead have become so few that it should have paid long ago
    q.holes = math.floor(q.holes / 2)
    return 0, false
  end
  local entries, all = log.range(q, q.cursor, '+', most)
  compact.move(q, entries)
  return #entries, not all
end

--- Move these entries, the next ones, out of the log.
function compact.move(q, entries)
  local ids, members, joined = {}, {}, {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
    members[2 * i - 1], members[2 * i] = string.sub(entry[1], 1, 13), entry[1]
    joined[2 * i - 1], joined[2 * i] = entry[1], loose.join(entry[2])
  end
  ready.pass_holes(q, #entries)
  if #entries > 0 then
    redis.call('XDEL', q.log, unpack(ids))
    redis.call('ZADD', q.returned, unpack(members))
    redis.call('HSET', q.loose, unpack(joined))
    redis.call('HSET', q.meta, 'compacted', 1)
    q.cursor = ids[#ids]
  end
end
