--- Batches of arriving messages: reading their envelopes, with deadline and outcome of each message.
--
-- A batch is a table. `words` holds the header and the body of each message in turn. The columns `deadline` and
-- `outcome` are indexed by the position of the body: 2, 4, … A message without an outcome is to be stored. The other
-- outcomes are `dead` (a TTL of 0), `late` (a deadline in the past), `duplicate`, `handed` (to a consumer) and
-- `refused`.
--
-- @use fast_path envelope message_ttl dedup
local batch = {}

--- Read a batch of envelopes and bodies. An envelope is a header with the TTL (`+<ms>` or `@<instant>`) in place of the
-- deadline. So an envelope without a TTL is the header, unless an option gives one. `malformed` is the number of the
-- first message with a bad envelope. With `step` 1 the words are bodies alone, all with the envelope `common`.
function batch.read(q, now, words, step, common)
  if step == 1 then words = fast_path.with_envelopes(words, common) end
  local items = {n = #words / 2, words = words, deadline = {}, outcome = {}, head = '', least = math.huge}
  local no_default_ttl, named = fast_path.no_default_ttl(q), q.window or q.remember
  local count, size = items.n, 0
  if #words % 2 == 1 then return {malformed = (#words + 1) / 2} end
  for i = 2, #words, 2 do
    local sent = words[i - 1]
    if (not no_default_ttl or sent ~= '') and not batch.read_envelope(q, items, i, sent, now, no_default_ttl) then
      return {malformed = i / 2}
    end
    if named and sent ~= '' then batch.note_id(items, i, sent) end
    if items.outcome[i] then
      count = count - 1
    else
      size = size + #words[i]
    end
  end
  items.count, items.size = count, size
  if items.dedup_name then lazy(dedup).mark_duplicates(q, now, items) end
  return items
end

--- Check the envelope of a message and set its deadline. Returns true if the envelope is well formed. Messages of a
-- batch are often alike, so the result for the message before is kept.
function batch.read_envelope(q, items, i, sent, now, no_default_ttl)
  if sent ~= items.envelope then
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
    items.envelope, items.ttl_sign, items.ttl_ms, items.header_at = sent, sign, ms, at
  end
  if not no_default_ttl or items.ttl_sign ~= '' then batch.set_deadline(q, items, i, now) end
  return true
end

--- Note the dedup name of a message with an id: the part `;<length of id>;;<id>` of its envelope.
function batch.note_id(items, i, sent)
  local from, length, at = string.match(sent, '^[+@]?%d*();(%d+);;()') -- the rest may look like an id
  if from then
    items.dedup_name = items.dedup_name or {}
    items.dedup_name[i] = string.sub(sent, from, at + length - 1)
  end
end

--- Set the deadline of a message, and its outcome if it is over on arrival.
function batch.set_deadline(q, items, i, now)
  local ttl = message_ttl.resolve(q, now, items.ttl_sign, items.ttl_ms)
  items.deadline[i] = ttl and now + ttl
  items.words[i - 1] = (ttl and string.format('%.0f', now + ttl) or '') .. string.sub(items.envelope, items.header_at)
  if (ttl and ttl <= 0) or q.message_ttl == 0 then
    items.outcome[i] = items.ttl_sign == '@' and ttl and ttl <= 0 and 'late' or 'dead'
  end
end
