--- Length limits: of ready messages, and of their body bytes.
--
-- @use queue ready dead_letter
local length = {}
local SOME = 8

--- How far `count` messages of `size` bytes are over the limits.
function length.over(q, count, size)
  return q.max_length and math.max(0, count - q.max_length) or 0,
    q.max_length_bytes and math.max(0, size - q.max_length_bytes) or 0
end

--- Whether `count` more messages of `size` bytes are too many.
function length.pressed(q, count, size)
  return q.max_length and queue.ready(q) + count > q.max_length
    or q.max_length_bytes and q.ready_bytes + size > q.max_length_bytes
end

--- Whether the queue keeps a limit by dropping what is oldest.
function length.drops(q)
  return q.drops_head and (q.max_length or q.max_length_bytes)
end

--- The oldest ready messages, as many as may have to go for `count` messages and `size` bytes; at most `most`. The second
-- result says whether that was all there is.
function length.heads(q, count, size, most)
  local few, all = ready.read(q, math.min(most, math.max(count, size > 0 and SOME or 0)))
  for _, entry in ipairs(few) do
    size = size - #entry[2][2]
  end
  if all or size <= 0 or #few >= most then
    return few, all
  end
  local many, rest = ready.read(q, most)
  if #many < #few then return few, false end
  return many, rest
end

--- The oldest messages whose removal takes away `count` messages and `size` bytes. Nothing is written.
-- Those of `dead` go anyway. The second result says whether they suffice, or are all there are.
function length.victims(q, count, size, most, dead)
  local chosen, skip, n = {}, {}, 0
  if count <= 0 and size <= 0 then
    return chosen, true
  end
  for _, entry in ipairs(dead or {}) do
    skip[entry[1]], n = true, n + 1
  end
  local heads, all = length.heads(q, count + n, size, most + n)
  chosen.dense = n == 0 and heads.dense
  for _, entry in ipairs(heads) do
    if not skip[entry[1]] then
      chosen[#chosen + 1] = entry
      count, size = count - 1, size - #entry[2][2]
      if count <= 0 and size <= 0 then return chosen, true end
    end
  end
  return chosen, all
end

function length.bury(q, now, entries)
  if #entries == 0 then return end
  ready.lose(q, entries, true)
  rare(dead_letter).bury(q, now, 'maxlen', entries)
end

--- Drop from the head until the limits hold, at most `most` messages. Returns how many went, and whether more must.
function length.trim(q, now, most)
  if not length.drops(q) then
    return 0, false
  end
  local count, size = length.over(q, queue.ready(q), q.ready_bytes)
  if count <= 0 and size <= 0 then return 0, false end
  local victims, enough = rare(length).victims(q, count, size, most)
  rare(length).bury(q, now, victims)
  return #victims, not enough
end
