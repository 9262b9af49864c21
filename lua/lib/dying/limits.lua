--- Length limits: of ready messages, and of their body bytes.
--- Room for messages that come back to a queue that drops its oldest ones: who has to go, decided before they are ready.
-- So the limits hold at every instant, and of those that come back only the oldest are dropped.
--
-- @use ready dead_letter budget
local limits = {}
local SOME = 8
local BUDGET = 250

--- How far `count` messages of `size` bytes are over the limits.
function limits.excess(q, count, size)
  return q.max_length and math.max(0, count - q.max_length) or 0,
    q.max_length_bytes and math.max(0, size - q.max_length_bytes) or 0
end

--- Whether `count` more messages of `size` bytes are too many.
function limits.would_exceed(q, count, size)
  return q.max_length and ready.count(q) + count > q.max_length
    or q.max_length_bytes and q.ready_bytes + size > q.max_length_bytes
end

--- Whether the queue keeps a limit by dropping what is oldest.
function limits.drops_oldest(q)
  return q.drops_head and (q.max_length or q.max_length_bytes)
end

--- The oldest ready messages, as many as may have to go for `count` messages and `size` bytes; at most `most`. The second
-- result says whether that was all there is.
function limits.heads(q, count, size, most)
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
function limits.victims(q, count, size, most, dead)
  local chosen, skip, n = {}, {}, 0
  if count <= 0 and size <= 0 then
    return chosen, true
  end
  for _, entry in ipairs(dead or {}) do
    skip[entry[1]], n = true, n + 1
  end
  local heads, all = limits.heads(q, count + n, size, most + n)
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

function limits.bury(q, now, entries)
  if #entries == 0 then return end
  ready.remove_unhandled(q, entries, true)
  lazy(dead_letter).bury(q, now, 'maxlen', entries)
end

--- Drop from the head until the limits hold, at most `most` messages. Returns how many went, and whether more must.
function limits.trim(q, now, most)
  if not limits.drops_oldest(q) then
    return 0, false
  end
  local count, size = limits.excess(q, ready.count(q), q.ready_bytes)
  if count <= 0 and size <= 0 then return 0, false end
  local victims, enough = lazy(limits).victims(q, count, size, most)
  lazy(limits).bury(q, now, victims)
  return #victims, not enough
end

--- How many messages and bytes there would be too much if these came back.
function limits.excess_after(q, back)
  local count, size = ready.count(q) + #back, q.ready_bytes
  for _, entry in ipairs(back) do
    size = size + #entry[2][2]
  end
  return limits.excess(q, count, size)
end

--- Who must go so that `back` can be ready, as `limits.decide` says it; without `blocked` nobody must. While the queue is
-- `crowded` by messages whose time is over, nobody goes, and nobody comes back.
function limits.enforce_on_requeue(q, back, crowded)
  local count, size = limits.excess_after(q, back)
  if count <= 0 and size <= 0 then return {all = {}} end
  return crowded and {all = {}, blocked = 1} or limits.decide(q, back, count, size)
end

--- Who must go so that `back` (sorted) can be ready: `all`, the oldest of what is ready and comes back. From number
-- `blocked` of those that come back on, one call cannot make room.
function limits.decide(q, back, count, size)
  if not budget.is_open() then budget.renew() end
  local heads, known = limits.heads(q, count, size, BUDGET)
  return limits.choose_oldest(heads, known, back, count, size)
end

--- The oldest of both until `count` messages and `size` bytes are gone. Unless all heads are `known`, nobody knows who is
-- older than what comes behind the last of them.
function limits.choose_oldest(heads, known, back, count, size)
  local all, i, j = {}, 1, 1
  while count > 0 or size > 0 do
    local head, mine = heads[i], back[j]
    if head and not (mine and mine[1] < head[1]) then
      all[#all + 1], i = head, i + 1
    elseif mine and (head or known) then
      all[#all + 1], j = mine, j + 1
    else
      return {all = all, blocked = j}
    end
    count, size = count - 1, size - #all[#all][2][2]
  end
  all.dense = j == 1 and heads.dense
  return {all = all, blocked = #back + 1}
end
