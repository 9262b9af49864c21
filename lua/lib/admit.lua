--- Making room for arriving messages: who must go, and who may come in. Nothing is written here but by `carry_out`.
--
-- @use arrival length expiry queue
local admit = {}
local BUDGET = 250

--- Decide. `again` in the plan means: what it names must go first, and that is all that one call may do.
function admit.decide(q, now, items)
  local plan = {kept = {}, own = {}, victims = {}}
  local limited = q.max_length or q.max_length_bytes
  local count, size = arrival.weigh(items)
  if not limited and count == #items then
    return plan
  end
  local ready, bytes, full = queue.ready(q), q.bytes, false
  local many, large = length.over(q, ready + count, bytes + size)
  local pressed = many > 0 or large > 0
  if not pressed and count == #items then
    return plan
  end
  if pressed and q.due and q.due <= now then
    plan.kept, plan.own, full = expiry.overdue(q, now, BUDGET)
    ready, bytes = ready - #plan.kept - #plan.own, bytes - admit.size(plan.kept) - admit.size(plan.own)
  end
  if ready == 0 then
    arrival.hand_over(q, now, items, pressed)
    count, size = arrival.weigh(items)
  end
  many, large = length.over(q, ready + count, bytes + size)
  if many > 0 or large > 0 then
    admit.make_room(q, plan, items, ready, bytes, many, large, full)
  end
  return plan
end

function admit.size(entries)
  local size = 0
  for _, entry in ipairs(entries) do
    size = size + #entry[2][2]
  end
  return size
end

function admit.make_room(q, plan, items, ready, bytes, many, large, full)
  if full then
    plan.again = true
  elseif q.drops_head then
    local skip, enough = {}
    for _, entries in ipairs({plan.kept, plan.own}) do
      for _, entry in ipairs(entries) do skip[entry[1]] = true end
    end
    plan.victims, enough = length.victims(q, many, large, BUDGET + #plan.kept + #plan.own, skip)
    plan.again = not enough
  else
    arrival.refuse(q, items, ready, bytes)
  end
end

--- Bury those who must go.
function admit.carry_out(q, now, plan)
  if #plan.kept + #plan.own > 0 then
    expiry.bury(q, now, plan.kept, plan.own)
  end
  if #plan.victims > 0 then
    length.bury(q, now, plan.victims)
  end
end
