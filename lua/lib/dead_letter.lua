--- Deaths: every one is counted, and moved to the reason's target queue in the same script as its cause.
--
-- @use history lifetime append queue target announce
local dead_letter = {}

--- Failed deliveries of these messages so far, by id.
function dead_letter.failures(q, ids)
  local failed = {}
  if #ids > 0 and redis.call('EXISTS', q.redelivered) == 1 then
    for i, n in ipairs(redis.call('HMGET', q.redelivered, unpack(ids))) do
      failed[ids[i]] = tonumber(n)
    end
  end
  return failed
end

--- The same as a list, id and number in turn.
function dead_letter.failed_ones(q, ids)
  local list = {}
  for id, n in pairs(dead_letter.failures(q, ids)) do
    list[#list + 1], list[#list + 2] = id, n
  end
  return list
end

--- Count the deaths of messages that were just removed, and append them to their target.
-- `more` is added to the failed deliveries of each: 1 if the delivery at hand is the cause.
function dead_letter.bury(q, now, reason, entries, more, description)
  if #entries == 0 then return end
  queue.count(q, 'deaths:' .. reason, #entries)
  local into, ids = q.targets[reason], {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  local failed = dead_letter.failures(q, ids)
  if next(failed) then
    redis.call('HDEL', q.redelivered, unpack(ids))
  end
  if into then
    dead_letter.move(q, into, now, entries, {queue = q.name or announce.name(q.meta), reason = reason,
      now = string.format('%d', now), failed = failed, more = more or 0, description = description or ''})
  else
    queue.count(q, 'dropped:' .. reason, #entries)
  end
end

function dead_letter.move(q, into, now, entries, death)
  local moved, size, name = 0, 0, into.name or death.queue
  if into ~= q then target.open(q, into, now) end
  into.letters = '1'
  death.first = death.queue .. ' ' .. death.reason .. ' 1 ' .. death.now .. ' ' .. death.now .. ' '
  death.rest = ' ' .. #death.description .. ' ' .. death.description
  local fewest = tostring(death.more)
  for _, entry in ipairs(entries) do
    local id, parts = entry[1], entry[2]
    local failed = death.failed[id]
    death.facts = string.sub(id, 1, 13) .. ' ' .. lifetime.text(q, id, parts[1]) .. ' '
      .. (failed and failed + death.more or fewest) .. death.rest
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
