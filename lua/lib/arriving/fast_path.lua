--- The fast path of enqueue: batches of bodies without an id and a TTL, or of messages with an id and nothing else, are
-- stored as they came.
--
-- @use dedup envelope
local fast_path = {}

--- Return whether no option gives a TTL to a message whose sender gave none.
function fast_path.no_default_ttl(q)
  return q.message_ttl ~= 0 and not (q.default_ttl or q.min_ttl or q.max_ttl)
end

--- Measure a batch in which every `step`-th word is a body. With `step` 1 all messages have the envelope `common`.
-- Returns nil if the batch has duplicates, or `common` is more than extras. `malformed` is the number of the first
-- message with a bad envelope.
function fast_path.measure(q, now, words, step, common)
  local size, names, n = 0, nil, #words / step
  if step == 2 then
    local malformed
    size, malformed = lazy(fast_path).check_envelopes(words)
    if malformed then return {malformed = malformed} end
    if q.window or q.remember then
      names = lazy(fast_path).unique_ids(q, now, words)
      if not names then return nil end
    end
  elseif common ~= '' and string.sub(common, 1, 3) ~= ';;;' then
    return nil
  else
    for i = 1, n do
      size = size + #words[i]
    end
  end
  return {n = n, count = n, size = size, words = words, step = step, dedup_names = names}
end

--- The bytes of all bodies, and the number of the first message whose envelope is more than an id. Envelopes with ids
-- of one length begin alike.
function fast_path.check_envelopes(words)
  local size, head, width, whole, sub = 0, '', 0, -1, string.sub
  for i = 2, #words, 2 do
    local header = words[i - 1]
    if #header ~= whole or sub(header, 1, width) ~= head then
      local least
      head, least = envelope.read_header(header, 1)
      if not head or head == ';;;' or least + 1 ~= #header then return size, i / 2 end
      width, whole = #head, #header
    end
    size = size + #words[i]
  end
  return size, #words % 2 == 1 and (#words + 1) / 2 or nil
end

--- The dedup names of a batch in which each message has an id; nil if one of them is known or comes twice.
function fast_path.unique_ids(q, now, words)
  local names, known_here, n = {}, {}, 0
  for i = 1, #words, 2 do
    local name = words[i]
    if known_here[name] then return nil end
    n = n + 1
    known_here[name], names[n] = true, name
  end
  return not next(dedup.known(q, now, names)) and names or nil
end

--- A batch of bodies with one envelope, in the form that `batch.read` takes.
function fast_path.with_envelopes(bodies, common)
  local words = {}
  for i = 1, #bodies do
    words[2 * i - 1], words[2 * i] = common, bodies[i]
  end
  return words
end
