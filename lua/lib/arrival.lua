--- Messages that arrive: their deadlines, and which of them die, are handed over, or stay.
--
-- A batch is a table: `words` are the header and the body of each message in turn, and the columns `own` (deadline) and
-- `fate` are indexed by the place of the body: 2, 4, … A message without a fate is to be stored; the others are `dead`
-- (a TTL of 0), `late` (an instant that has passed), `duplicate`, `handed` or `refused`.
--
-- @use plain lifetime seen
local arrival = {}

--- Read the batch: for each message what the sender said of it, and its body. What was said is a header with the TTL
-- (`+<ms>` or `@<instant>`) in place of the deadline, so without one it is the header, unless an option gives a TTL.
function arrival.read(q, now, words)
  local items = {n = #words / 2, words = words, own = {}, fate = {}}
  local calm, named = plain.is_calm(q), q.window or q.remember
  local count, size = items.n, 0
  for i = 2, #words, 2 do
    local said = words[i - 1]
    if named and said ~= '' then arrival.name(items, i, said) end
    if not calm or said ~= '' and string.byte(said) ~= 59 then -- ;
      arrival.time(q, items, i, said, now)
    end
    if items.fate[i] then
      count = count - 1
    else
      size = size + #words[i]
    end
  end
  items.count, items.size = count, size
  if items.name then rare(seen).sift(q, now, items) end
  return items
end

--- Note the name of a message, if it has an id: that part of its header, `;<length of id>;;<id>`.
function arrival.name(items, i, said)
  local from, length, at = string.match(said, '^[+@]?%d*();(%d+);;()') -- what stands behind may look like one
  if from then
    items.name = items.name or {}
    items.name[i] = string.sub(said, from, at + length - 1)
  end
end

--- Give a message its own deadline, and a fate, if its time is over as it comes.
function arrival.time(q, items, i, said, now)
  local kind, value, at = string.match(said, '^([+@]?)(%d*)()')
  local ttl = lifetime.resolve(q, now, kind, value)
  items.own[i] = ttl and now + ttl
  items.words[i - 1] = (ttl and string.format('%.0f', now + ttl) or '') .. string.sub(said, at)
  if (ttl and ttl <= 0) or q.message_ttl == 0 then
    items.fate[i] = kind == '@' and ttl and ttl <= 0 and 'late' or 'dead'
  end
end
