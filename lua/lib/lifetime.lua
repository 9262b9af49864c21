--- How long a message lives: the TTL it gets when it arrives, and the deadline in force now.
--
-- @use message
local lifetime = {}

--- The effective deadline of an entry: its own or the queue's retention, whichever comes first; nil = never.
function lifetime.deadline(q, id, header)
  local own = message.deadline(header)
  local kept = q.message_ttl and tonumber(string.sub(id, 1, 13)) + q.message_ttl
  if own and (not kept or own < kept) then
    return own
  end
  return kept
end

function lifetime.is_over(q, now, entry)
  local deadline = lifetime.deadline(q, entry[1], entry[2][1])
  return deadline ~= nil and deadline <= now
end

--- The own TTL of an arriving message in ms; nil = none. `kind` is '+' for a relative TTL, '@' for an instant, '' for none.
-- Clamps act floor first, so where the two cross the ceiling wins.
function lifetime.resolve(rules, now, kind, value)
  local own
  if kind == '+' then
    own = tonumber(value)
  elseif kind == '@' then
    own = value - now
  end
  if rules.never then
    return nil
  elseif rules.default then
    return own or rules.default
  elseif not own then
    return rules.max or rules.min
  end
  if rules.min and own < rules.min then own = rules.min end
  if rules.max and own > rules.max then own = rules.max end
  return own
end
