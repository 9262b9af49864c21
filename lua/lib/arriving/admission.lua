--- Admission of arriving messages: some enter, some die on arrival, and older messages may make room.
--
-- The plan is decided before the first write. It names overdue messages (`dead`), messages for waiting consumers
-- (`older`) and messages over a limit (`victims`). `retry` says that these are all that one call can remove.
--
-- @use limits expiry record dead_letter handoff budget wakeup queue_lifetime ready log memory
local admission = {}
local BUDGET = 250

--- Decide the consequences of arriving messages, and make way for them. Returns what `admission.make_way` returns.
function admission.decide(q, now, items)
  return admission.make_way(q, now, admission.plan(q, now, items))
end

--- Begin to carry out a plan. Returns it, or nil if the client must repeat the call: then the call has removed the
-- messages that were in the way. Older messages get their tickets here, before arriving ones.
function admission.make_way(q, now, plan)
  if plan.older then lazy(handoff).give_oldest(q, now, plan.older) end
  if not plan.retry then
    return plan
  end
  if #plan.victims > 0 then
    -- live messages go only if Redis has memory for the message that pushes them out
    memory.must_ask(q)
  end
  admission.apply(q, now, plan)
  record.save(q)
end

--- Bury the messages that the plan names.
function admission.apply(q, now, plan)
  if plan.dead then lazy(expiry).bury(q, now, plan.dead) end
  if #plan.victims > 0 then
    lazy(limits).bury(q, now, plan.victims)
  end
end

--- Trim the queue after a batch that is larger than a limit: only its end stays. The call brought these messages
-- itself.
function admission.trim(q, now, most)
  repeat
    budget.renew()
    local trimmed, more = limits.trim(q, now, most)
  until not more or trimmed == 0
end

--- Bury arriving messages that die at once, and refused ones if they are dead letters; then apply the plan. Returns the
-- number of refused messages.
function admission.bury_arrivals(q, now, plan, items)
  local dead, refused = {}, {}
  for i = 2, 2 * items.n, 2 do
    local outcome = items.outcome[i]
    local list = (outcome == 'dead' or outcome == 'late') and dead or outcome == 'refused' and refused
    if list then
      list[#list + 1] = {items.seq[i], {items.words[i - 1], items.words[i]}}
    end
  end
  if #dead > 0 then lazy(dead_letter).bury(q, now, 'expired', dead) end
  if q.dead_letter_refused and q.targets.maxlen then
    lazy(dead_letter).bury(q, now, 'maxlen', refused)
  end
  admission.apply(q, now, plan)
  admission.trim(q, now, items.n)
  if #refused > 0 then record.count(q, 'refused', #refused) end
  return #refused
end

--- Make the plan. Nothing is written here.
function admission.plan(q, now, items)
  budget.renew() -- dead letters that go back were read before
  local plan = {victims = {}}
  items.limit, items.seq = {}, {}
  local count, bytes = ready.count(q), q.ready_bytes
  local over_count, over_bytes = limits.excess(q, count + items.count, bytes + items.size)
  local pressed = over_count > 0 or over_bytes > 0
  if q.due_at and q.due_at <= now then
    plan.dead = lazy(expiry).overdue(q, now, BUDGET)
    for _, entries in ipairs({plan.dead.past_retention, plan.dead.past_deadline}) do
      count, bytes = count - #entries, bytes - log.size(entries)
    end
  end
  local surplus, surplus_bytes = limits.excess(q, count, bytes)
  if q.drops_head and (surplus > 0 or surplus_bytes > 0) and wakeup.unwoken(q, now) > 0 then
    -- the limit has become lower: what it pushes out goes to no consumer
    admission.make_room(q, plan, items, count, bytes, surplus, surplus_bytes)
    plan.retry = plan.retry or #plan.victims > 0
    if plan.retry then return plan end
  end
  handoff.decide(q, now, plan, items, count, pressed)
  if plan.retry then return plan end
  if plan.older then
    count, bytes = count - #plan.older.seqs, bytes - plan.older.size
  end
  over_count, over_bytes = limits.excess(q, count + items.count, bytes + items.size)
  if over_count > 0 or over_bytes > 0 then
    admission.make_room(q, plan, items, count, bytes, over_count, over_bytes)
  end
  return plan
end

--- Choose the messages that make room. Live messages go only if no overdue ones are left.
function admission.make_room(q, plan, items, count, bytes, over_count, over_bytes)
  local dead = plan.dead
  if dead and dead.full then
    plan.retry = true
  elseif q.drops_head then
    local going, enough = {}
    for _, entries in ipairs({dead and dead.all or {}, plan.older and plan.older.taken or {}}) do
      for _, entry in ipairs(entries) do going[#going + 1] = entry end
    end
    plan.victims, enough = lazy(limits).victims(q, over_count, over_bytes, BUDGET, going)
    plan.retry = not enough
  else
    admission.refuse(q, items, count, bytes)
  end
end

--- Refuse each message that finds no room, and each duplicate of a refused message.
function admission.refuse(q, items, count, size)
  for i = 2, 2 * items.n, 2 do
    local first = items.first_with_id and items.first_with_id[i]
    if first and items.outcome[first] == 'refused' then
      items.outcome[i], items.limit[i] = 'refused', items.limit[first]
    elseif not items.outcome[i] then
      local over_count, over_bytes = limits.excess(q, count + 1, size + #items.words[i])
      if over_count > 0 or over_bytes > 0 then
        items.outcome[i], items.limit[i] = 'refused', over_count > 0 and 'max_length' or 'max_length_bytes'
        items.count, items.size = items.count - 1, items.size - #items.words[i]
      else
        count, size = count + 1, size + #items.words[i]
      end
    end
  end
end

--- The limit that refuses the first message without room; nil if all have room.
function admission.limit(items)
  for i = 2, 2 * items.n, 2 do
    if items.limit[i] then return items.limit[i] end
  end
end

--- Apply the plan after the messages were stored, and save the record. `most` counts them all as enqueued.
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
