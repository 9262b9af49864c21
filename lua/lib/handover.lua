--- Handing arriving messages to consumers that wait, before a TTL of 0 or a limit acts on them.
--
-- @use wake log lease queue
local handover = {}
local PICKUP = 5000

--- Consumers that wait take arriving messages before a TTL of 0 or a limit acts on them; in order, so what
-- comes before such a message is handed over too.
function handover.choose(q, now, items, pressed)
  local last = 0
  for i = 2, 2 * math.min(items.n, wake.free(q, now)), 2 do
    if items.fate[i] or pressed then last = i end
  end
  for i = 2, last, 2 do
    if not items.fate[i] then
      items.count, items.size = items.count - 1, items.size - #items.body[i]
    end
    items.fate[i] = 'handed'
  end
end

--- Give a message to a consumer that waits: leased for the time it takes to fetch it, with a ticket in the bell.
-- The queue has nothing ready, so the cursor may pass it.
function handover.give(q, now, header, body)
  local id = log.append(q, now, header, body)
  local token = lease.token(now + PICKUP, q.grants)
  lease.grant(q, token, {id})
  q.grants, q.cursor = q.grants + 1, id
  queue.due_by(q, now + PICKUP)
  redis.call('RPUSH', q.bell, id .. ' ' .. token)
  return id
end
