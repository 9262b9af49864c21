--- Messages that arrive: their deadlines, and who of them may come in. Everything is decided before the first write.
--
-- @use lifetime message length expiry queue wake log dead_letter lease
local arrival = {}
local PICKUP = 5000

--- Read the batch: for each message what the sender said of it (`<TTL>;<length of id>;<id><extras>` or nothing), and
-- its body. Extras stay as they are.
function arrival.read(q, rules, now, batch)
  local items = {}
  for i = 1, #batch, 2 do
    local said, body = batch[i], batch[i + 1]
    local kind, value, id, extras = '', nil, '', ''
    if said ~= '' then
      local length, at
      kind, value, length, at = string.match(said, '^([+@]?)(%d*);(%d*);()')
      length = tonumber(length) or 0
      id, extras = string.sub(said, at, at + length - 1), string.sub(said, at + length)
    end
    local ttl = lifetime.resolve(rules, now, kind, value)
    items[#items + 1] = {header = message.pack(ttl and now + ttl, id, extras), body = body, deadline = ttl and now + ttl,
      fate = ((ttl and ttl <= 0) or q.message_ttl == 0) and 'dead' or 'stored'}
  end
  return items
end

function arrival.weigh(items)
  local count, size = 0, 0
  for _, item in ipairs(items) do
    if item.fate == 'stored' then
      count, size = count + 1, size + #item.body
    end
  end
  return count, size
end

--- Consumers that wait take arriving messages before a TTL of 0 or a limit acts on them.
function arrival.hand_over(q, now, items, pressed)
  local free = wake.free(q, now)
  for _, item in ipairs(items) do
    if free <= 0 or (item.fate == 'stored' and not pressed) then return end
    item.fate, free = 'handed', free - 1
  end
end

--- Refuse, one by one, the messages that do not fit.
function arrival.refuse(q, items, count, size)
  for _, item in ipairs(items) do
    if item.fate == 'stored' then
      local many, large = length.over(q, count + 1, size + #item.body)
      if many > 0 or large > 0 then
        item.fate, item.limit = 'refused', many > 0 and 'max_length' or 'max_length_bytes'
      else
        count, size = count + 1, size + #item.body
      end
    end
  end
end

--- Give a message to a consumer that waits: leased for the time it takes to fetch it, with a ticket in the bell.
-- The queue has nothing ready, so the cursor may pass it.
function arrival.hand(q, now, item)
  local id = log.append(q, now, item.header, item.body)
  local token = lease.grant(q, now + PICKUP, q.grants, {id})
  q.grants, q.cursor = q.grants + 1, id
  queue.due_by(q, now + PICKUP)
  redis.call('RPUSH', q.bell, id .. ' ' .. token)
  return id
end
