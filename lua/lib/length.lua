--- Length limits: of ready messages, and of their body bytes.
--
-- @use queue ready dead_letter expiry
local length = {}

--- How far `count` messages of `size` bytes are over the limits.
function length.over(q, count, size)
  return q.max_length and math.max(0, count - q.max_length) or 0,
    q.max_length_bytes and math.max(0, size - q.max_length_bytes) or 0
end

--- Whether `count` more messages of `size` bytes are too many.
function length.pressed(q, count, size)
  return q.max_length and queue.ready(q) + count > q.max_length
    or q.max_length_bytes and q.bytes + size > q.max_length_bytes
end

--- The oldest messages whose removal takes away `count` messages and `size` bytes. Nothing is written.
-- The second result says whether they suffice, or are all there are.
function length.victims(q, count, size, most, skip)
  local chosen, asked = {}, queue.readable(q, most)
  if count <= 0 and size <= 0 then
    return chosen, true
  end
  local heads, all = ready.read(q, asked, nil, skip)
  chosen.dense = heads.dense
  for _, entry in ipairs(heads) do
    chosen[#chosen + 1] = entry
    count, size = count - 1, size - #entry[2][2]
    if count <= 0 and size <= 0 then
      return chosen, true
    end
  end
  return chosen, all
end

function length.bury(q, now, entries)
  ready.lose(q, entries, true)
  dead_letter.bury(q, now, 'maxlen', entries)
end

--- Messages are back, and may be too many. Those whose time is over make room first, as for arriving ones.
function length.hold(q, now, most)
  if not q.drops_head or not length.pressed(q, 0, 0) then
    return false
  elseif q.due and q.due <= now then
    local kept, own = expiry.overdue(q, now, most)
    expiry.bury(q, now, kept, own)
  end
  local _, more = length.trim(q, now, most)
  return more
end

--- Drop from the head until the limits hold, at most `most` messages. Returns how many went, and whether more must.
function length.trim(q, now, most)
  if not q.drops_head or not (q.max_length or q.max_length_bytes) then
    return 0, false
  end
  local count, size = length.over(q, queue.ready(q), q.bytes)
  local victims, enough = length.victims(q, count, size, most)
  length.bury(q, now, victims)
  return #victims, not enough
end
