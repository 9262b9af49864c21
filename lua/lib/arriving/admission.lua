--- Making room for what arrives: deciding, and carrying out what `admission.plan` decided.
--- Room for arriving messages: who must go, and who may come in. Nothing is written here.
--- What follows from messages that arrived where room had to be made, or is to be kept.
--
-- @use limits expiry record dead_letter handoff budget wakeup queue_lifetime ready log
local admission = {}
local BUDGET = 250

--- The plan; or nothing, where so much has to go first that one call may do no more. That has gone then.
-- Older messages go to consumers that wait at once, so that their tickets come before those of arriving ones.
function admission.decide(q, now, items)
  local plan = admission.plan(q, now, items)
  if plan.older then lazy(handoff).give_oldest(q, now, plan.older) end
  if not plan.retry then
    return plan
  end
  if #plan.victims > 0 then
    -- live messages go only if Redis has memory for the one that drives them out: this write it may refuse
    redis.call('HSET', q.meta, 'last_id', q.last_id)
  end
  admission.apply(q, now, plan)
  record.save(q)
end

--- Bury those who must go.
function admission.apply(q, now, plan)
  if plan.dead then lazy(expiry).bury(q, now, plan.dead) end
  if #plan.victims > 0 then
    lazy(limits).bury(q, now, plan.victims)
  end
end

--- Of a batch that is larger than a limit only the end stays. What is read again here has come with the call.
function admission.trim(q, now, most)
  repeat
    budget.renew()
    local gone, more = limits.trim(q, now, most)
  until not more or gone == 0
end

--- Bury arriving messages that are dead at once, and refused ones where they are dead letters; then whoever must go.
function admission.bury_arrivals(q, now, plan, items)
  local dead, refused = {}, {}
  for i = 2, 2 * items.n, 2 do
    local fate = items.fate[i]
    local gone = (fate == 'dead' or fate == 'late') and dead or fate == 'refused' and refused
    if gone then
      gone[#gone + 1] = {items.id[i], {items.words[i - 1], items.words[i]}}
    end
  end
  if #dead > 0 then lazy(dead_letter).bury(q, now, 'expired', dead) end
  if q.dead_letters_new and q.targets.maxlen then
    lazy(dead_letter).bury(q, now, 'maxlen', refused)
  end
  admission.apply(q, now, plan)
  admission.trim(q, now, items.n)
  if #refused > 0 then record.count(q, 'refused', #refused) end
  return #refused
end

--- Decide. `retry` in the plan means: what it names must go first, and that is all that one call may do.
function admission.plan(q, now, items)
  budget.renew() -- letters that go back were read before
  local plan = {victims = {}}
  items.limit, items.id = {}, {}
  local ready, bytes = ready.count(q), q.ready_bytes
  local many, large = limits.excess(q, ready + items.count, bytes + items.size)
  local pressed = many > 0 or large > 0
  if q.due_at and q.due_at <= now then
    plan.dead = expiry.overdue(q, now, BUDGET)
    ready, bytes = ready - #plan.dead.kept - #plan.dead.own, bytes - log.size(plan.dead.kept) - log.size(plan.dead.own)
  end
  handoff.decide(q, now, plan, items, ready, pressed)
  if plan.retry then return plan end
  if plan.older then
    ready, bytes = ready - #plan.older.ids, bytes - plan.older.size
  end
  many, large = limits.excess(q, ready + items.count, bytes + items.size)
  if many > 0 or large > 0 then
    admission.make_room(q, plan, items, ready, bytes, many, large)
  end
  return plan
end

--- Living messages go only once nothing else is overdue.
function admission.make_room(q, plan, items, ready, bytes, many, large)
  local dead = plan.dead
  if dead and dead.full then
    plan.retry = true
  elseif q.drops_head then
    local going, enough = {}
    for _, entries in ipairs({dead and dead.all or {}, plan.older and plan.older.taken or {}}) do
      for _, entry in ipairs(entries) do going[#going + 1] = entry end
    end
    plan.victims, enough = limits.victims(q, many, large, BUDGET, going)
    plan.retry = not enough
  else
    admission.refuse(q, items, ready, bytes)
  end
end

--- Refuse, one by one, the messages that do not fit, and duplicates of such.
function admission.refuse(q, items, count, size)
  for i = 2, 2 * items.n, 2 do
    local twin = items.twin and items.twin[i]
    if twin and items.fate[twin] == 'refused' then
      items.fate[i], items.limit[i] = 'refused', items.limit[twin]
    elseif not items.fate[i] then
      local many, large = limits.excess(q, count + 1, size + #items.words[i])
      if many > 0 or large > 0 then
        items.fate[i], items.limit[i] = 'refused', many > 0 and 'max_length' or 'max_length_bytes'
        items.count, items.size = items.count - 1, items.size - #items.words[i]
      else
        count, size = count + 1, size + #items.words[i]
      end
    end
  end
end

--- `most` is how many will have been enqueued so far if none was refused.
function admission.finish(q, now, items, plan, most)
  if items.count > 0 then
    q.ready_bytes = q.ready_bytes + items.size
    if q.message_ttl then record.schedule_sweep(q, now + q.message_ttl) end
  end
  local refused = admission.bury_arrivals(q, now, plan, items)
  if items.count > 0 then wakeup.ring(q, now) end
  if q.life then queue_lifetime.mark_active(q, now) end
  q.was.enqueued, q.enqueued = '', string.format('%d', most - refused)
  record.save(q)
end
