--- Handing messages to consumers that wait, before a TTL of 0 or a limit acts on those that arrive: the oldest first, so
-- that nothing overtakes what is ready.
--
-- @use wake append claim
local handover = {}
local BUDGET = 250

--- Choose what goes to the `free` consumers that wait: the place of the last arriving message, and how many of the `ready`
-- ones go before it. Under a limit (`pressed`) all that consumers wait for goes; else nothing behind the last message
-- with a TTL of 0. What had expired before it came goes to nobody, nor do duplicates.
function handover.choose(free, ready, items, pressed)
  local left, last = free - ready, 0
  for i = 2, 2 * items.n, 2 do
    local nobodys = items.fate[i] == 'late' or items.fate[i] == 'duplicate'
    left = nobodys and left or left - 1
    if left < 0 then break end
    if items.fate[i] == 'dead' or pressed and not nobodys then last = i end
  end
  return last, (pressed or last > 0) and math.max(0, math.min(free, ready)) or 0
end

--- Give the arriving messages up to place `last` the fate `handed`.
function handover.mark(items, last)
  for i = 2, last, 2 do
    if not items.fate[i] then
      items.count, items.size = items.count - 1, items.size - #items.words[i]
    end
    if items.fate[i] ~= 'late' and items.fate[i] ~= 'duplicate' then items.fate[i] = 'handed' end
  end
end

--- Decide what goes to consumers that wait; the older messages among it stand in the plan. `retry`: what is overdue goes
-- first, so that it is not among them; or there are more of them than one call may read. Nothing is written.
function handover.decide(q, now, plan, items, ready, pressed)
  local last, n = handover.choose(wake.free(q, now), ready, items, pressed)
  if n > 0 and plan.dead and #plan.dead.kept + #plan.dead.own > 0 then
    plan.retry = true
    return
  elseif n > 0 then
    local older = {taken = {}, ids = {}, own = {}, over = {}, size = 0, older = true}
    claim.take(q, now, math.min(n, BUDGET), older)
    plan.older, plan.retry = older, #older.ids < n and #older.ids + #older.over > 0
    if #older.ids < n then last = 0 end -- nothing overtakes what could not be read
  end
  handover.mark(items, last)
end

--- Give ready messages to consumers that wait. The first write is one that Redis refuses when memory is full.
function handover.give_oldest(q, now, state)
  redis.call('HSET', q.meta, 'last_id', q.last_id)
  claim.settle(q, now, state)
  if #state.ids > 0 then wake.hand(q, now, state.ids) end
end

--- Give an arriving message to a consumer that waits. Nothing is ready, so the cursor may pass it.
function handover.give(q, now, header, body)
  local id = append.one(q, now, header, body)
  q.cursor = id
  wake.hand(q, now, {id})
  return id
end
