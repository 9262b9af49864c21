--- Giving memory back: a stream frees only whole nodes, so survivors among the expired keep 4 KB each alive.
-- Where that costs much, the messages at the beginning of the log move to `detached`, one by one, whatever their state.
--
-- @use log budget ready
local compact = {}
local FEW, LARGE = 64, 2048
local NODE, OVERHEAD = 4096, 200
local MOVED_BYTES, STEP = 1048576, 16

--- Whether the log takes much more memory than its messages would one by one. Where bodies are large, a node holds one
-- message in any case, and nobody looks: the answer to the look holds two bodies. Nor where one of these may be huge.
-- A queue that holds dead letters is left alone: its log is read by id range and must stay whole.
function compact.pays(q)
  local length, count = redis.call('XLEN', q.log), 0
  if length <= FEW or q.holds_dead_letters == '1' then return false end
  count = ready.count(q)
  if q.ready_bytes > count * LARGE or budget.largest(q, q.large_upto) > MOVED_BYTES then return false end
  local facts, at = redis.call('XINFO', 'STREAM', q.log), {}
  for i = 1, #facts, 2 do
    at[facts[i]] = facts[i + 1]
  end
  local nodes = at['radix-tree-keys']
  if nodes <= FEW then return false end
  local size = count > 0 and q.ready_bytes / count or (#at['first-entry'][2][2] + #at['last-entry'][2][2]) / 2
  return nodes * NODE > 1.5 * length * (size + OVERHEAD)
end

--- Move up to `most` messages from the beginning of the log. Returns how many, and whether more should.
-- A call that has swept (`busy`) leaves it to the next one, so that no call does both.
function compact.run(q, most, busy)
  local pays = compact.pays(q)
  if not pays or busy then
    return 0, pays
  end
  local entries = compact.read(q, most)
  if #entries > 0 then compact.move(q, entries) end
  return #entries, #entries > 0
end

--- Up to `most` entries from the beginning of the log, a few at a time, until they are large.
function compact.read(q, most)
  local entries, size, all = {}, 0, false
  while #entries < most and size < MOVED_BYTES and not all and budget.is_open() do
    local some
    some, all = log.range(q, #entries > 0 and entries[#entries][1] or '0-0', '+', math.min(STEP, most - #entries))
    for _, entry in ipairs(some) do
      size = size + #entry[2][1] + #entry[2][2]
    end
    log.join(entries, some)
  end
  return entries
end

--- Move these entries, the first ones, out of the log. Those ahead of the cursor come to lie behind it.
function compact.move(q, entries)
  local ids, members, joined = {}, {}, {}
  for i, entry in ipairs(entries) do
    local id = entry[1]
    ids[i], joined[2 * i - 1], joined[2 * i] = id, id, log.pack(entry[2])
    if id > q.cursor then
      members[#members + 1], members[#members + 2] = tonumber(string.sub(id, 1, 13)) or 0, id
      q.cursor = id
    end
  end
  redis.call('XDEL', q.log, unpack(ids))
  redis.call('HSET', q.detached, unpack(joined))
  if #members > 0 then redis.call('ZADD', q.requeued, unpack(members)) end
  redis.call('HSET', q.meta, 'compacted', 1)
end
