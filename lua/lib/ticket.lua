--- Tickets: messages that were handed to a consumer while it waited.
--
-- @use lease log
local ticket = {}

--- A message that was handed to a waiting consumer, if the ticket still holds.
function ticket.show(q, now, shown, state)
  local id, token = string.match(shown, '^(%S+) (%S+)$')
  if id and lease.held(q, now, {token, 1, id}, '')[1] then
    state.taken[#state.taken + 1], state.ids[#state.ids + 1] = log.find(q, id), id
  end
end

--- A consumer that stops waiting takes what was handed to it after it last looked.
function ticket.find(q, now, most, state)
  if #state.taken < most and redis.call('LLEN', q.bell) > 0 then
    ticket.show(q, now, redis.call('LPOP', q.bell), state)
  end
end
