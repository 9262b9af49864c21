--- Batches whose messages are stored as they come: bodies, or headers that say nothing but an id, and bodies.
--
-- @use seen
local plain = {}

--- Whether no option gives a message a TTL that its sender did not ask for.
function plain.is_calm(q)
  return q.message_ttl ~= 0 and not (q.default_ttl or q.min_ttl or q.max_ttl)
end

--- A batch in which every `step`-th word is a body; nothing, if it has duplicates.
function plain.weigh(q, now, words, step)
  local size, names = 0, nil
  if step == 2 and (q.window or q.remember) then
    names = rare(plain).names(q, now, words)
    if not names then return nil end
  end
  for i = step, #words, step do
    size = size + #words[i]
  end
  local n = #words / step
  return {n = n, count = n, size = size, words = words, step = step, names = names}
end

--- The names of a batch in which every message has one, if none of them is known or comes twice.
function plain.names(q, now, words)
  local names, own, n = {}, {}, 0
  for i = 1, #words, 2 do
    local name = words[i]
    if own[name] then return nil end
    n = n + 1
    own[name], names[n] = true, name
  end
  return not next(seen.known(q, now, names)) and names or nil
end

--- A batch of bodies as `arrival.read` takes it.
function plain.spread(bodies)
  local words = {}
  for i = 1, #bodies do
    words[2 * i - 1], words[2 * i] = '', bodies[i]
  end
  return words
end
