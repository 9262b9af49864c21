--- Messages that arrive: their deadlines, and which of them die, are handed over, or stay.
--
-- A batch is a table of columns (`header`, `body`, `own` deadline, `fate`), because most batches are plain. A message
-- without a fate is to be stored; the others are `dead`, `handed` or `refused`.
--
-- @use lifetime message length queue wake log lease
local arrival = {}
local PICKUP = 5000

--- Read the batch: for each message what the sender said of it (`<TTL>;<length of id>;<id><extras>` or nothing), and
-- its body. Extras stay as they are.
function arrival.read(q, now, words)
  local items = {n = #words / 2, count = 0, size = 0, header = {}, body = {}, own = {}, fate = {}, limit = {}}
  local calm = not (q.default_ttl or q.min_ttl or q.max_ttl) and q.message_ttl ~= 0
  for i = 1, items.n do
    local said, body = words[2 * i - 1], words[2 * i]
    items.body[i] = body
    if said == '' and calm then
      items.header[i] = ''
    else
      arrival.read_one(q, items, i, said, now)
    end
    if q.message_ttl == 0 then items.fate[i] = 'dead' end
    if not items.fate[i] then
      items.count, items.size = items.count + 1, items.size + #body
    end
  end
  return items
end

function arrival.read_one(q, items, i, said, now)
  local kind, value, length, at = string.match(said, '^([+@]?)(%d*);(%d*);()')
  local id, extras = '', ''
  if at then
    length = tonumber(length) or 0
    id, extras = string.sub(said, at, at + length - 1), string.sub(said, at + length)
  end
  local ttl = lifetime.resolve(q, now, kind, value)
  items.own[i] = ttl and now + ttl
  items.header[i] = message.pack(items.own[i], id, extras)
  if ttl and ttl <= 0 then items.fate[i] = 'dead' end
end

--- Consumers that wait take arriving messages before a TTL of 0 or a limit acts on them; in order, so what
-- comes before such a message is handed over too.
function arrival.hand_over(q, now, items, pressed)
  local last = 0
  for i = 1, math.min(items.n, wake.free(q, now)) do
    if items.fate[i] or pressed then last = i end
  end
  for i = 1, last do
    if not items.fate[i] then
      items.count, items.size = items.count - 1, items.size - #items.body[i]
    end
    items.fate[i] = 'handed'
  end
end

--- Refuse, one by one, the messages that do not fit.
function arrival.refuse(q, items, count, size)
  for i = 1, items.n do
    if not items.fate[i] then
      local many, large = length.over(q, count + 1, size + #items.body[i])
      if many > 0 or large > 0 then
        items.fate[i], items.limit[i] = 'refused', many > 0 and 'max_length' or 'max_length_bytes'
        items.count, items.size = items.count - 1, items.size - #items.body[i]
      else
        count, size = count + 1, size + #items.body[i]
      end
    end
  end
end

--- Give a message to a consumer that waits: leased for the time it takes to fetch it, with a ticket in the bell.
-- The queue has nothing ready, so the cursor may pass it.
function arrival.hand(q, now, header, body)
  local id = log.append(q, now, header, body)
  local token = lease.token(now + PICKUP, q.grants)
  lease.grant(q, token, {id})
  q.grants, q.cursor = q.grants + 1, id
  queue.due_by(q, now + PICKUP)
  redis.call('RPUSH', q.bell, id .. ' ' .. token)
  return id
end
