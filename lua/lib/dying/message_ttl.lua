--- The TTL of a message: its own TTL at arrival, and its deadline in force now.
--
-- @use message
local message_ttl = {}

--- The deadline in force: the earlier one of the own deadline and the end of retention. Nil for never.
function message_ttl.deadline(q, seq, header)
  local own_deadline = message.deadline(header)
  local retention_end = q.message_ttl and string.sub(seq, 1, 13) + q.message_ttl
  if own_deadline and (not retention_end or own_deadline < retention_end) then
    return own_deadline
  end
  return retention_end
end

--- The same as text, `-` for never. A header that is only a deadline is that text already.
function message_ttl.text(q, seq, header)
  if not q.message_ttl and header ~= '' and not string.find(header, '%D') and message.deadline(header) then
    return header
  end
  local deadline = message_ttl.deadline(q, seq, header)
  return deadline and string.format('%d', deadline) or '-'
end

--- Return whether the deadline of an entry has passed.
function message_ttl.is_over(q, now, entry)
  local deadline = message_ttl.deadline(q, entry[1], entry[2][1])
  return deadline ~= nil and deadline <= now
end

--- Sort entries that all have a deadline by deadline.
function message_ttl.sort(q, entries)
  local at = {}
  for _, entry in ipairs(entries) do
    at[entry] = message_ttl.deadline(q, entry[1], entry[2][1])
  end
  table.sort(entries, function(a, b) return at[a] < at[b] or at[a] == at[b] and a[1] < b[1] end)
end

--- The own TTL of an arriving message in ms, nil for none. `kind` is `+` for a relative TTL, `@` for an instant, empty
-- for none. The lower bound acts first, so the upper bound wins if they cross.
function message_ttl.resolve(q, now, kind, value)
  local ttl
  if kind == '+' then
    ttl = tonumber(value)
  elseif kind == '@' then
    ttl = value - now
  end
  if q.never_expire then
    return nil
  elseif q.default_ttl then
    return ttl or q.default_ttl
  elseif not ttl then
    return q.max_ttl or q.min_ttl
  end
  if q.min_ttl and ttl < q.min_ttl then ttl = q.min_ttl end
  if q.max_ttl and ttl > q.max_ttl then ttl = q.max_ttl end
  return ttl
end
