--- Compaction: giving memory back. A stream frees only whole nodes, so one message left in a node keeps 4 KB in use.
-- Where that costs much, messages at the head of the log move to `detached`, in any state.
--
-- @use log budget ready
local compact = {}
local FEW, LARGE = 64, 2048
local NODE, OVERHEAD = 4096, 200
local MOVED_BYTES, STEP = 1048576, 16

--- Return whether the log takes much more memory than its messages alone. Large bodies are not checked: each of them
-- fills a node, and XINFO returns two. A queue of dead letters is never compacted: readers need its log whole.
function compact.pays(q)
  local length = redis.call('XLEN', q.log)
  if length <= FEW or q.holds_dead_letters == '1' then return false end
  local count = ready.count(q)
  if q.ready_bytes > count * LARGE or budget.largest(q, q.large_upto) > MOVED_BYTES then return false end
  local info, at = redis.call('XINFO', 'STREAM', q.log), {}
  for i = 1, #info, 2 do
    at[info[i]] = info[i + 1]
  end
  local nodes = at['radix-tree-keys']
  if nodes <= FEW then return false end
  local size = count > 0 and q.ready_bytes / count or (#at['first-entry'][2][2] + #at['last-entry'][2][2]) / 2
  return nodes * NODE > 1.5 * length * (size + OVERHEAD)
end

--- Move up to `most` messages from the head of the log. Returns their number, and whether more should move. A call that
-- has swept (`busy`) moves none.
function compact.run(q, most, busy)
  local pays = compact.pays(q)
  if not pays or busy then
    return 0, pays
  end
  local entries = compact.read(q, most)
  if #entries > 0 then compact.move(q, entries) end
  return #entries, #entries > 0
end

--- Up to `most` entries from the head of the log, read a few at a time until their size is large.
function compact.read(q, most)
  local entries, size, all = {}, 0, false
  while #entries < most and size < MOVED_BYTES and not all and budget.is_open() do
    local page
    page, all = log.range(q, #entries > 0 and entries[#entries][1] or '0-0', '+', math.min(STEP, most - #entries))
    for _, entry in ipairs(page) do
      size = size + #entry[2][1] + #entry[2][2]
    end
    log.join(entries, page)
  end
  return entries
end

--- Move these first entries out of the log. The cursor passes those that were ahead of it.
function compact.move(q, entries)
  local seqs, members, joined = {}, {}, {}
  for i, entry in ipairs(entries) do
    local seq = entry[1]
    seqs[i], joined[2 * i - 1], joined[2 * i] = seq, seq, log.pack(entry[2])
    if seq > q.cursor then
      members[#members + 1], members[#members + 2] = log.ms(seq) or 0, seq
      q.cursor = seq
    end
  end
  redis.call('XDEL', q.log, unpack(seqs))
  redis.call('HSET', q.detached, unpack(joined))
  if #members > 0 then redis.call('ZADD', q.requeued, unpack(members)) end
  redis.call('HSET', q.meta, 'compacted', 1)
end
