--- Making room for arriving messages: who must go, and who may come in. Nothing is written here but by `carry_out`.
--
-- @use arrival length expiry queue dead_letter handover
local admit = {}
local BUDGET = 250

--- Decide. `again` in the plan means: what it names must go first, and that is all that one call may do.
function admit.decide(q, now, items)
  local plan = {kept = {}, own = {}, victims = {}}
  local ready, bytes, full = queue.ready(q), q.bytes, false
  local many, large = length.over(q, ready + items.count, bytes + items.size)
  local pressed = many > 0 or large > 0
  if q.due and q.due <= now then
    plan.kept, plan.own, full = expiry.overdue(q, now, BUDGET)
    ready, bytes = ready - #plan.kept - #plan.own, bytes - admit.size(plan.kept) - admit.size(plan.own)
  end
  if ready == 0 then
    handover.choose(q, now, items, pressed)
  end
  many, large = length.over(q, ready + items.count, bytes + items.size)
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

--- Bury arriving messages that are dead at once, and refused ones where they are dead letters; then whoever must go.
function admit.finish(q, now, plan, items)
  local dead, refused = {}, {}
  for i = 2, 2 * items.n, 2 do
    local gone = items.fate[i] == 'dead' and dead or items.fate[i] == 'refused' and refused
    if gone then
      gone[#gone + 1] = {items.id[i], {items.header[i] or '', items.body[i]}}
    end
  end
  dead_letter.bury(q, now, 'expired', dead)
  if q.dead_letters_new and q.targets.maxlen then
    dead_letter.bury(q, now, 'maxlen', refused)
  end
  admit.carry_out(q, now, plan)
  length.trim(q, now, items.n)
  if #refused > 0 then queue.count(q, 'refused', #refused) end
  return #refused
end
