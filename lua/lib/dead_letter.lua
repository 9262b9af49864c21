--- Deaths: every one is counted, and moved to the reason's target queue in the same script as its cause.
--
-- @use failures history lifetime append queue target announce
local dead_letter = {}

--- Count the deaths of messages that were just removed, and append them to their target.
-- `more` is added to the failed deliveries of each: 1 if the delivery at hand is the cause. `description` says why. A
-- message that failed too often has its last error for one, unless the delivery at hand brings another.
function dead_letter.bury(q, now, reason, entries, more, description)
  if #entries == 0 then return end
  queue.count(q, 'deaths:' .. reason, #entries)
  local into, ids = q.targets[reason], {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  local failed, said = failures.read(q, ids)
  if next(failed) then
    redis.call('HDEL', q.failures, unpack(ids))
  end
  if into then
    description = description or ''
    if reason ~= 'delivery_limit' or description ~= '' then said = {} end
    dead_letter.move(q, into, now, entries, {queue = q.name or announce.name(q.meta), reason = reason,
      now = string.format('%d', now), failed = failed, more = more or 0, said = said,
      rest = dead_letter.described(description)})
  else
    queue.count(q, 'dropped:' .. reason, #entries)
  end
end

--- A description as it ends a death record.
function dead_letter.described(text)
  return ' ' .. #text .. ' ' .. text
end

function dead_letter.move(q, into, now, entries, death)
  local moved, size, name = 0, 0, into.name or death.queue
  if into ~= q then target.open(q, into, now) end
  into.holds_dead_letters = '1'
  death.first = death.queue .. ' ' .. death.reason .. ' 1 ' .. death.now .. ' ' .. death.now .. ' '
  local fewest = tostring(death.more)
  for _, entry in ipairs(entries) do
    local id, parts = entry[1], entry[2]
    local failed, said = death.failed[id], death.said[id]
    death.facts = string.sub(id, 1, 13) .. ' ' .. lifetime.text(q, id, parts[1]) .. ' '
      .. (failed and failed + death.more or fewest) .. (said and dead_letter.described(said) or death.rest)
    local header = history.bury(parts[1], id, death, name)
    if header then
      append.one(into, now, header, parts[2])
      moved, size = moved + 1, size + #parts[2]
    else
      queue.count(q, 'dropped:cycle', 1)
    end
  end
  target.close(q, into, now, moved, size)
end
