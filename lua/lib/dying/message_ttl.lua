--- How long a message lives: the TTL it gets when it arrives, and the deadline in force now.
--
-- @use message
local message_ttl = {}

--- The effective deadline of an entry: its own or the queue's retention, whichever comes first; nil = never.
function message_ttl.deadline(q, id, header)
  local own = message.deadline(header)
  local kept = q.message_ttl and tonumber(string.sub(id, 1, 13)) + q.message_ttl
  if own and (not kept or own < kept) then
    return own
  end
  return kept
end

--- The same as text, `-` for never. A header that is nothing but a deadline is that text already.
function message_ttl.text(q, id, header)
  if not q.message_ttl and header ~= '' and not string.find(header, '%D') and message.deadline(header) then
    return header
  end
  local deadline = message_ttl.deadline(q, id, header)
  return deadline and string.format('%d', deadline) or '-'
end

function message_ttl.is_over(q, now, entry)
  local deadline = message_ttl.deadline(q, entry[1], entry[2][1])
  return deadline ~= nil and deadline <= now
end

--- Put entries that all have a deadline into the order of their deadlines.
function message_ttl.sort(q, entries)
  local at = {}
  for _, entry in ipairs(entries) do
    at[entry] = message_ttl.deadline(q, entry[1], entry[2][1])
  end
  table.sort(entries, function(a, b) return at[a] < at[b] or at[a] == at[b] and a[1] < b[1] end)
end

--- The own TTL of an arriving message in ms; nil = none. `kind` is '+' for a relative TTL, '@' for an instant, '' for none.
-- Clamps act floor first, so where the two cross the ceiling wins.
function message_ttl.resolve(q, now, kind, value)
  local own
  if kind == '+' then
    own = tonumber(value)
  elseif kind == '@' then
    own = value - now
  end
  if q.never_expire then
    return nil
  elseif q.default_ttl then
    return own or q.default_ttl
  elseif not own then
    return q.max_ttl or q.min_ttl
  end
  if q.min_ttl and own < q.min_ttl then own = q.min_ttl end
  if q.max_ttl and own > q.max_ttl then own = q.max_ttl end
  return own
end
