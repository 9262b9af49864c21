--- Handing arriving messages to consumers that wait, before a TTL of 0 or a limit acts on them.
--
-- @use wake append lease queue
local handover = {}
local PICKUP = 5000

--- Consumers that wait take arriving messages before a TTL of 0 or a limit acts on them; in order, so what
-- comes before such a message is handed over too. What had expired before it came goes to nobody, nor do duplicates.
function handover.choose(q, now, items, pressed)
  local free, last = wake.free(q, now), 0
  for i = 2, 2 * items.n, 2 do
    local nobodys = items.fate[i] == 'late' or items.fate[i] == 'duplicate'
    free = nobodys and free or free - 1
    if free < 0 then break end
    if items.fate[i] == 'dead' or pressed and not nobodys then last = i end
  end
  for i = 2, last, 2 do
    if not items.fate[i] then
      items.count, items.size = items.count - 1, items.size - #items.words[i]
    end
    if items.fate[i] ~= 'late' and items.fate[i] ~= 'duplicate' then items.fate[i] = 'handed' end
  end
end

--- Give a message to a consumer that waits: leased for the time it takes to fetch it, with a ticket in the bell.
-- The queue has nothing ready, so the cursor may pass it.
function handover.give(q, now, header, body)
  local id = append.one(q, now, header, body)
  local token = lease.token(now + PICKUP, q.grants)
  lease.grant(q, token, {id})
  q.grants, q.cursor = q.grants + 1, id
  queue.due_by(q, now + PICKUP)
  redis.call('RPUSH', q.bell, id .. ' ' .. token)
  return id
end
