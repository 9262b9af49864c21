--- Tickets: messages that were handed to a consumer while it waited.
--
-- @use lease log
local ticket = {}

--- A message that was handed to a waiting consumer, if the ticket still holds.
function ticket.show(q, now, shown, state)
  local id, token = string.match(shown, '^(%S+) (%S+)$')
  if id and lease.held(q, now, {token, 1, id}, '')[1] then
    state.taken[#state.taken + 1], state.ids[#state.ids + 1] = log.find(q, id), id
    state.shown = {id}
  end
end

--- A consumer that stops waiting takes what was handed to it after it last looked. A hint may lie before the ticket, and
-- tickets that hold no longer.
function ticket.find(q, now, most, state)
  for _ = 1, 10 do
    local found = #state.taken < most and not state.shown and redis.call('LPOP', q.wakeup)
    if not found then return end
    ticket.show(q, now, found, state)
  end
end
