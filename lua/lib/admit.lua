--- Making room for what arrives: deciding, and carrying out what `room.decide` decided.
--
-- @use room length expiry queue record dead_letter handover budget
local admit = {}

--- The plan; or nothing, where so much has to go first that one call may do no more. That has gone then.
-- Older messages go to consumers that wait at once, so that their tickets come before those of arriving ones.
function admit.decide(q, now, items)
  local plan = room.decide(q, now, items)
  if plan.older then rare(handover).give_oldest(q, now, plan.older) end
  if not plan.retry then
    return plan
  end
  if #plan.victims > 0 then
    -- live messages go only if Redis has memory for the one that drives them out: this write it may refuse
    redis.call('HSET', q.meta, 'last_id', q.last_id)
  end
  admit.carry_out(q, now, plan)
  record.save(q)
end

--- Bury those who must go.
function admit.carry_out(q, now, plan)
  if plan.dead then rare(expiry).bury(q, now, plan.dead) end
  if #plan.victims > 0 then
    rare(length).bury(q, now, plan.victims)
  end
end

--- Of a batch that is larger than a limit only the end stays. What is read again here has come with the call.
function admit.trim(q, now, most)
  repeat
    budget.renew()
    local gone, more = length.trim(q, now, most)
  until not more or gone == 0
end

--- Bury arriving messages that are dead at once, and refused ones where they are dead letters; then whoever must go.
function admit.finish(q, now, plan, items)
  local dead, refused = {}, {}
  for i = 2, 2 * items.n, 2 do
    local fate = items.fate[i]
    local gone = (fate == 'dead' or fate == 'late') and dead or fate == 'refused' and refused
    if gone then
      gone[#gone + 1] = {items.id[i], {items.words[i - 1], items.words[i]}}
    end
  end
  if #dead > 0 then rare(dead_letter).bury(q, now, 'expired', dead) end
  if q.dead_letters_new and q.targets.maxlen then
    rare(dead_letter).bury(q, now, 'maxlen', refused)
  end
  admit.carry_out(q, now, plan)
  admit.trim(q, now, items.n)
  if #refused > 0 then queue.count(q, 'refused', #refused) end
  return #refused
end
