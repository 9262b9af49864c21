--- Room for arriving messages: who must go, and who may come in. Nothing is written here.
--
-- @use length expiry queue handover budget
local room = {}
local BUDGET = 250

--- Decide. `retry` in the plan means: what it names must go first, and that is all that one call may do.
function room.decide(q, now, items)
  budget.renew() -- letters that go back were read before
  local plan = {victims = {}}
  items.limit, items.id = {}, {}
  local ready, bytes = queue.ready(q), q.ready_bytes
  local many, large = length.over(q, ready + items.count, bytes + items.size)
  local pressed = many > 0 or large > 0
  if q.due_at and q.due_at <= now then
    plan.dead = expiry.overdue(q, now, BUDGET)
    ready, bytes = ready - #plan.dead.kept - #plan.dead.own, bytes - room.size(plan.dead.kept) - room.size(plan.dead.own)
  end
  handover.decide(q, now, plan, items, ready, pressed)
  if plan.retry then return plan end
  if plan.older then
    ready, bytes = ready - #plan.older.ids, bytes - plan.older.size
  end
  many, large = length.over(q, ready + items.count, bytes + items.size)
  if many > 0 or large > 0 then
    room.make_room(q, plan, items, ready, bytes, many, large)
  end
  return plan
end

function room.size(entries)
  local size = 0
  for _, entry in ipairs(entries) do
    size = size + #entry[2][2]
  end
  return size
end

--- Living messages go only once nothing else is overdue.
function room.make_room(q, plan, items, ready, bytes, many, large)
  local dead = plan.dead
  if dead and dead.full then
    plan.retry = true
  elseif q.drops_head then
    local going, enough = {}
    for _, entries in ipairs({dead and dead.all or {}, plan.older and plan.older.taken or {}}) do
      for _, entry in ipairs(entries) do going[#going + 1] = entry end
    end
    plan.victims, enough = length.victims(q, many, large, BUDGET, going)
    plan.retry = not enough
  else
    room.refuse(q, items, ready, bytes)
  end
end

--- Refuse, one by one, the messages that do not fit, and duplicates of such.
function room.refuse(q, items, count, size)
  for i = 2, 2 * items.n, 2 do
    local twin = items.twin and items.twin[i]
    if twin and items.fate[twin] == 'refused' then
      items.fate[i], items.limit[i] = 'refused', items.limit[twin]
    elseif not items.fate[i] then
      local many, large = length.over(q, count + 1, size + #items.words[i])
      if many > 0 or large > 0 then
        items.fate[i], items.limit[i] = 'refused', many > 0 and 'max_length' or 'max_length_bytes'
        items.count, items.size = items.count - 1, items.size - #items.words[i]
      else
        count, size = count + 1, size + #items.words[i]
      end
    end
  end
end
