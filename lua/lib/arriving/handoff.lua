--- Handing messages to consumers that wait, before a TTL of 0 or a limit acts on those that arrive: the oldest first, so
-- that nothing overtakes what is ready.
--- Tickets: messages that were handed to a consumer while it waited.
--
-- @use wakeup append take lease log
local handoff = {}
local BUDGET = 250

--- Choose what goes to the `free` consumers that wait: the place of the last arriving message, and how many of the `ready`
-- ones go before it. Under a limit (`pressed`) all that consumers wait for goes; else nothing behind the last message
-- with a TTL of 0. What had expired before it came goes to nobody, nor do duplicates.
function handoff.choose(free, ready, items, pressed)
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
function handoff.mark(items, last)
  for i = 2, last, 2 do
    if not items.fate[i] then
      items.count, items.size = items.count - 1, items.size - #items.words[i]
    end
    if items.fate[i] ~= 'late' and items.fate[i] ~= 'duplicate' then items.fate[i] = 'handed' end
  end
end

--- Decide what goes to consumers that wait; the older messages among it stand in the plan. `retry`: what is overdue goes
-- first, so that it is not among them; or there are more of them than one call may read. Nothing is written.
function handoff.decide(q, now, plan, items, ready, pressed)
  local last, n = handoff.choose(wakeup.unwoken(q, now), ready, items, pressed)
  if n > 0 and plan.dead and #plan.dead.kept + #plan.dead.own > 0 then
    plan.retry = true
    return
  elseif n > 0 then
    local older = {taken = {}, ids = {}, own = {}, over = {}, size = 0, older = true}
    take.choose(q, now, math.min(n, BUDGET), older)
    plan.older, plan.retry = older, #older.ids < n and #older.ids + #older.over > 0
    if #older.ids < n then last = 0 end -- nothing overtakes what could not be read
  end
  handoff.mark(items, last)
end

--- Give ready messages to consumers that wait. The first write is one that Redis refuses when memory is full.
function handoff.give_oldest(q, now, state)
  redis.call('HSET', q.meta, 'last_id', q.last_id)
  take.apply(q, now, state)
  if #state.ids > 0 then wakeup.hand_off(q, now, state.ids) end
end

--- Give an arriving message to a consumer that waits. Nothing is ready, so the cursor may pass it.
function handoff.give(q, now, header, body)
  local id = append.one(q, now, header, body)
  q.cursor = id
  wakeup.hand_off(q, now, {id})
  return id
end

--- A message that was handed to a waiting consumer, if the ticket still holds.
function handoff.accept(q, now, shown, state)
  local id, token = string.match(shown, '^(%S+) (%S+)$')
  if id and lease.held(q, now, {token, 1, id}, '')[1] then
    state.taken[#state.taken + 1], state.ids[#state.ids + 1] = log.find(q, id), id
    state.shown = {id}
  end
end

--- A consumer that stops waiting takes what was handed to it after it last looked. A hint may lie before the ticket, and
-- tickets that hold no longer.
function handoff.claim(q, now, most, state)
  for _ = 1, 10 do
    local found = #state.taken < most and not state.shown and redis.call('LPOP', q.wakeup)
    if not found then return end
    handoff.accept(q, now, found, state)
  end
end
