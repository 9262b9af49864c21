--- Messages that arrive: their deadlines, and which of them die, are handed over, or stay.
--
-- A batch is a table of columns (`header`, `body`, `own` deadline, `fate`), because most batches are plain. Columns are
-- indexed by the place of the body in what the client sent: 2, 4, … A message without a fate is to be stored; the
-- others are `dead` (a TTL of 0), `late` (an instant that has passed), `duplicate`, `handed` or `refused`.
--
-- @use plain lifetime message append queue handover seen
local arrival = {}

--- Read the batch: for each message what the sender said of it (`<TTL>;<length of id>;<id><extras>` or nothing), and
-- its body. Extras stay as they are. A plain message has neither header nor own deadline nor fate, and a batch of none
-- but those is not `mixed`.
function arrival.read(q, now, words)
  local items = {n = #words / 2, size = 0, count = 0, body = words, mixed = false}
  local calm = plain.is_calm(q)
  local count, size = items.n, 0
  for i = 1, #words, 2 do
    if (words[i] ~= '' or not calm) and arrival.read_one(q, items, i + 1, words[i], now) then
      count = count - 1
    else
      size = size + #words[i + 1]
    end
  end
  items.count, items.size = count, size
  if items.name then rare(seen).sift(q, now, items) end
  return items
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

--- Store a mixed batch: all but those that are dead or refused. Returns what the client is told of each.
function arrival.store(q, now, items)
  local deadlines, results = {}, {}
  for i = 2, 2 * items.n, 2 do
    local fate, own, header, id = items.fate[i], items.own[i], items.header[i] or '', nil
    if not fate then
      id = append.one(q, now, header, items.body[i])
      if own then
        deadlines[#deadlines + 1], deadlines[#deadlines + 2] = own, id
        queue.due_by(q, own)
      end
    elseif fate == 'duplicate' then
      id, own = '=', nil
    elseif fate == 'handed' then
      id = rare(handover).give(q, now, header, items.body[i])
    else
      id = append.next_id(q, now)
      items.id[i] = id
    end
    results[i / 2] = items.limit and items.limit[i] and '!' .. items.limit[i] or own and id .. string.format(' %d', own) or id
  end
  if #deadlines > 0 then
    redis.call('ZADD', q.expiry, unpack(deadlines))
  end
  return results
end
