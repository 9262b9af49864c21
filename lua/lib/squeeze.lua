--- Room for messages that come back to a queue that drops its oldest ones: who has to go, decided before they are ready.
-- So the limits hold at every instant, and of those that come back only the oldest are dropped.
--
-- @use length queue budget
local squeeze = {}
local BUDGET = 250

--- How many messages and bytes there would be too much if these came back.
function squeeze.need(q, back)
  local count, size = queue.ready(q) + #back, q.ready_bytes
  for _, entry in ipairs(back) do
    size = size + #entry[2][2]
  end
  return length.over(q, count, size)
end

--- Who must go so that `back` can be ready, as `squeeze.decide` says it; without `blocked` nobody must. While the queue is
-- `crowded` by messages whose time is over, nobody goes, and nobody comes back.
function squeeze.room(q, back, crowded)
  local count, size = squeeze.need(q, back)
  if count <= 0 and size <= 0 then return {all = {}} end
  return crowded and {all = {}, blocked = 1} or squeeze.decide(q, back, count, size)
end

--- Who must go so that `back` (sorted) can be ready: `all`, the oldest of what is ready and comes back. From number
-- `blocked` of those that come back on, one call cannot make room.
function squeeze.decide(q, back, count, size)
  if not budget.is_open() then budget.renew() end
  local heads, known = length.heads(q, count, size, BUDGET)
  return squeeze.choose(heads, known, back, count, size)
end

--- The oldest of both until `count` messages and `size` bytes are gone. Unless all heads are `known`, nobody knows who is
-- older than what comes behind the last of them.
function squeeze.choose(heads, known, back, count, size)
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
