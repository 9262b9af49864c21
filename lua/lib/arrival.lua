--- Messages that arrive: their deadlines, and which of them die, are handed over, or stay.
--
-- A batch is a table of columns (`header`, `body`, `own` deadline, `fate`), because most batches are plain. Columns are
-- indexed by the place of the body in what the client sent: 2, 4, … A message without a fate is to be stored; the
-- others are `dead`, `handed` or `refused`.
--
-- @use lifetime message length
local arrival = {}

--- Read the batch: for each message what the sender said of it (`<TTL>;<length of id>;<id><extras>` or nothing), and
-- its body. Extras stay as they are. A plain message has neither header nor own deadline nor fate.
function arrival.read(q, now, words)
  local items = {n = #words / 2, size = 0, body = words, header = {}, own = {}, fate = {}, limit = {}}
  local calm = q.message_ttl ~= 0 and not (q.default_ttl or q.min_ttl or q.max_ttl)
  local count, size = items.n, 0
  for i = 1, #words, 2 do
    if (words[i] ~= '' or not calm) and arrival.read_one(q, items, i + 1, words[i], now) == 'dead' then
      count = count - 1
    else
      size = size + #words[i + 1]
    end
  end
  items.count, items.size = count, size
  return items
end

--- Read what was said of one message. Its fate is to be dead if its time is over as it comes.
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
  if (ttl and ttl <= 0) or q.message_ttl == 0 then items.fate[i] = 'dead' end
  return items.fate[i]
end

--- Refuse, one by one, the messages that do not fit.
function arrival.refuse(q, items, count, size)
  for i = 2, 2 * items.n, 2 do
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
