--- Messages that arrive: their deadlines, and which of them die, are handed over, or stay.
--
-- A batch is a table: `words` are the header and the body of each message in turn, and the columns `own` (deadline) and
-- `fate` are indexed by the place of the body: 2, 4, … A message without a fate is to be stored; the others are `dead`
-- (a TTL of 0), `late` (an instant that has passed), `duplicate`, `handed` or `refused`.
--
-- @use fast_path envelope message_ttl dedup
local batch = {}

--- Read the batch: for each message what the sender said of it, and its body. What was said is a header with the TTL
-- (`+<ms>` or `@<instant>`) in place of the deadline, so without one it is the header, unless an option gives a TTL.
-- `malformed` is the place of the first message of which something else was said.
function batch.read(q, now, words)
  local items = {n = #words / 2, words = words, own = {}, fate = {}, head = '', least = math.huge}
  local calm, named = fast_path.no_default_ttl(q), q.window or q.remember
  local count, size = items.n, 0
  if #words % 2 == 1 then return {malformed = (#words + 1) / 2} end
  for i = 2, #words, 2 do
    local sent = words[i - 1]
    if (not calm or sent ~= '') and not batch.read_envelope(q, items, i, sent, now, calm) then
      return {malformed = i / 2}
    end
    if named and sent ~= '' then batch.note_id(items, i, sent) end
    if items.fate[i] then
      count = count - 1
    else
      size = size + #words[i]
    end
  end
  items.count, items.size = count, size
  if items.name then lazy(dedup).mark_duplicates(q, now, items) end
  return items
end

--- Check what was said of a message, and give the message its deadline. Returns whether it was well formed. Many
-- messages of a batch are alike, so what was read of the one before is kept.
function batch.read_envelope(q, items, i, sent, now, calm)
  if sent ~= items.sent then
    local sign, ms, at = '', '', 1
    if string.byte(sent) ~= 59 then -- ;
      sign, ms, at = envelope.read_ttl(sent)
      if not sign then return false end
    end
    local head = items.head
    if at <= #sent and (#sent < at + items.least or string.sub(sent, at, at + #head - 1) ~= head) then
      items.head, items.least = envelope.read_header(sent, at)
      if not items.head then return false end
    end
    items.sent, items.sign, items.ms, items.at = sent, sign, ms, at
  end
  if not calm or items.sign ~= '' then batch.set_deadline(q, items, i, now) end
  return true
end

--- Note the name of a message, if it has an id: that part of its header, `;<length of id>;;<id>`.
function batch.note_id(items, i, sent)
  local from, length, at = string.match(sent, '^[+@]?%d*();(%d+);;()') -- what stands behind may look like one
  if from then
    items.name = items.name or {}
    items.name[i] = string.sub(sent, from, at + length - 1)
  end
end

--- Give a message its own deadline, and a fate, if its time is over as it comes.
function batch.set_deadline(q, items, i, now)
  local ttl = message_ttl.resolve(q, now, items.sign, items.ms)
  items.own[i] = ttl and now + ttl
  items.words[i - 1] = (ttl and string.format('%.0f', now + ttl) or '') .. string.sub(items.sent, items.at)
  if (ttl and ttl <= 0) or q.message_ttl == 0 then
    items.fate[i] = items.sign == '@' and ttl and ttl <= 0 and 'late' or 'dead'
  end
end
