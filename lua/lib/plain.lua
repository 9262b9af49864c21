--- Batches of nothing but bodies.
local plain = {}

--- Whether no option gives a message a TTL that its sender did not ask for.
function plain.is_calm(q)
  return q.message_ttl ~= 0 and not (q.default_ttl or q.min_ttl or q.max_ttl)
end

--- A batch of nothing but bodies, to be stored as they are.
function plain.weigh(bodies)
  local size = 0
  for i = 1, #bodies do
    size = size + #bodies[i]
  end
  return {n = #bodies, count = #bodies, size = size, body = bodies, mixed = false, plain = true}
end

--- The same batch as `read` takes it.
function plain.spread(bodies)
  local words = {}
  for i = 1, #bodies do
    words[2 * i - 1], words[2 * i] = '', bodies[i]
  end
  return words
end
