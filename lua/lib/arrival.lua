--- Messages that arrive: their deadlines, and which of them die, are handed over, or stay.
--
-- A batch is a table of columns (`header`, `body`, `own` deadline, `fate`), because most batches are plain. Columns are
-- indexed by the place of the body in what the client sent: 2, 4, … A message without a fate is to be stored; the
-- others are `dead` (a TTL of 0), `late` (an instant that has passed), `duplicate`, `handed` or `refused`.
--
-- @use plain lifetime message seen
local arrival = {}

--- Read the batch: for each message what the sender said of it (`<TTL>;<length of id>;<id><extras>` or nothing), and
-- its body. Extras stay as they are. A plain message has neither header nor own deadline nor fate, and a batch of none
-- but those is not `mixed`.
function arrival.read(q, now, words)
  local items = {n = #words / 2, size = 0, count = 0, body = words, mixed = false}
  local calm, named = plain.is_calm(q), q.window or q.remember
  local count, size = items.n, 0
  for i = 1, #words, 2 do
    local said, length, at = words[i], nil, nil
    if calm then length, at = string.match(said, '^;(%d*);()') end
    if at then
      arrival.read_untimed(items, i + 1, length, string.sub(said, at), named)
    elseif (said ~= '' or not calm) and arrival.read_one(q, items, i + 1, said, now) then
      count, size = count - 1, size - #words[i + 1]
    end
    size = size + #words[i + 1]
  end
  items.count, items.size = count, size
  if items.name then rare(seen).sift(q, now, items) end
  return items
end

--- Read a message that has no TTL, where none can be given to it: `text` is its id, of this length, and extras.
function arrival.read_untimed(items, i, length, text, named)
  if not items.mixed then arrival.mix(items) end
  items.header[i] = ';' .. length .. ';;' .. text
  if named and length ~= '' then
    items.name = items.name or {}
    items.name[i] = string.sub(text, 1, length)
  end
end

--- Read what was said of one message. Returns its fate, if its time is over as it comes.
function arrival.read_one(q, items, i, said, now)
  if not items.mixed then arrival.mix(items) end
  local kind, value, length, at = string.match(said, '^([+@]?)(%d*);(%d*);()')
  local ttl, text = lifetime.resolve(q, now, kind, value), at and string.sub(said, at) or ''
  items.own[i] = ttl and now + ttl
  items.header[i] = message.pack(items.own[i], length or '', text)
  if (q.window or q.remember) and length and length ~= '' then
    items.name = items.name or {}
    items.name[i] = string.sub(text, 1, length)
  end
  if (ttl and ttl <= 0) or q.message_ttl == 0 then
    items.fate[i] = kind == '@' and ttl and ttl <= 0 and 'late' or 'dead'
  end
  return items.fate[i]
end

--- Make the columns of what not every batch has.
function arrival.mix(items)
  items.mixed, items.header, items.own, items.fate = true, {}, {}, {}
end
