--- Carrying out what `room.decide` decided.
--
-- @use length expiry queue dead_letter
local admit = {}

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
    local fate = items.fate[i]
    local gone = (fate == 'dead' or fate == 'late') and dead or fate == 'refused' and refused
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
