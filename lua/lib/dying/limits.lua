--- Length limits: the number of ready messages, and the bytes of their bodies.
--
-- For messages that come back room is made before they are ready. So the limits always hold, and only the oldest drop.
--
-- @use ready dead_letter budget log
local limits = {}
local FIRST_HEADS = 8
local BUDGET = 250

--- The number of messages and bytes over the limits, for `count` messages of `size` bytes.
function limits.excess(q, count, size)
  return q.max_length and math.max(0, count - q.max_length) or 0,
    q.max_length_bytes and math.max(0, size - q.max_length_bytes) or 0
end

--- Return whether `count` more messages of `size` bytes exceed a limit.
function limits.would_exceed(q, count, size)
  return q.max_length and ready.count(q) + count > q.max_length
    or q.max_length_bytes and q.ready_bytes + size > q.max_length_bytes
end

--- Return whether the queue keeps its limits by dropping the oldest messages.
function limits.drops_oldest(q)
  return q.drops_head and (q.max_length or q.max_length_bytes)
end

--- The oldest ready messages, at least as many as must go for `count` messages and `size` bytes, at most `most`. The
-- second result is true if these are all.
function limits.heads(q, count, size, most)
  local heads, all = ready.read(q, math.min(most, math.max(count, size > 0 and FIRST_HEADS or 0)))
  size = size - log.size(heads)
  if all or size <= 0 or #heads >= most then
    return heads, all
  end
  local more_heads, all_heads = ready.read(q, most)
  if #more_heads < #heads then return heads, false end
  return more_heads, all_heads
end

--- The oldest messages whose removal takes away `count` messages and `size` bytes. Messages of `dead` go anyway. The
-- second result is true if the victims suffice, or if there are no more. Nothing is written.
function limits.victims(q, count, size, most, dead)
  local victims, skip, n = {}, {}, 0
  if count <= 0 and size <= 0 then
    return victims, true
  end
  for _, entry in ipairs(dead or {}) do
    skip[entry[1]], n = true, n + 1
  end
  local going = size > 0 and n > 0 and log.size(dead) or 0
  local heads, all = limits.heads(q, count + n, size + going, most + n)
  victims.dense = n == 0 and heads.dense
  for _, entry in ipairs(heads) do
    if not skip[entry[1]] then
      victims[#victims + 1] = entry
      count, size = count - 1, size - #entry[2][2]
      if count <= 0 and size <= 0 then return victims, true end
    end
  end
  return victims, all
end

--- Bury messages over a limit.
function limits.bury(q, now, entries)
  if #entries == 0 then return end
  ready.remove_unhandled(q, entries, true)
  lazy(dead_letter).bury(q, now, 'maxlen', entries)
end

--- Drop up to `most` messages from the head until the limits hold. Returns their number, and whether more must go.
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

--- Choose the messages that must go so that `back` can be ready, as `limits.decide` does. Without `blocked` none must.
-- While the queue is `crowded` by overdue messages, no message goes and none comes back.
function limits.enforce_on_requeue(q, back, crowded)
  local count, size = limits.excess(q, ready.count(q) + #back, q.ready_bytes + log.size(back))
  if count <= 0 and size <= 0 then return {all = {}} end
  return crowded and {all = {}, blocked = 1} or limits.decide(q, back, count, size)
end

--- Choose the messages that must go so that `back` (sorted) can be ready: `all`, the oldest of ready and returning
-- ones. One call cannot make room for returning messages from number `blocked` on.
function limits.decide(q, back, count, size)
  if not budget.is_open() then budget.renew() end
  local heads, all_known = limits.heads(q, count, size, BUDGET)
  return limits.choose_oldest(heads, all_known, back, count, size)
end

--- Choose the oldest of both until `count` messages and `size` bytes are gone. Without `all_known` the choice ends
-- behind the last head.
function limits.choose_oldest(heads, all_known, back, count, size)
  local all, i, j = {}, 1, 1
  while count > 0 or size > 0 do
    local head, returning = heads[i], back[j]
    if head and not (returning and returning[1] < head[1]) then
      all[#all + 1], i = head, i + 1
    elseif returning and (head or all_known) then
      all[#all + 1], j = returning, j + 1
    else
      return {all = all, blocked = j}
    end
    count, size = count - 1, size - #all[#all][2][2]
  end
  all.dense = j == 1 and heads.dense
  return {all = all, blocked = #back + 1}
end
