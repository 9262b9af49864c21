--- Ready messages: those given back or moved aside (`returned`), then those ahead of the cursor in the log.
--
-- @use log queue
local ready = {}

--- Up to `most` ready entries in order. `upto` ends them at an instant (in ms), `skip` holds ids to leave out.
-- The second result says whether that was all there is. `dense` is set where they are neighbours in the log.
function ready.read(q, most, upto, skip)
  local last, entries = upto and string.format('%d', upto) or '+', nil
  local ids = redis.call('ZRANGEBYSCORE', q.returned, '-inf', upto or '+inf', 'LIMIT', 0, most)
  if #ids == 0 then
    entries = redis.call('XRANGE', q.log, '(' .. q.cursor, last, 'COUNT', most)
    entries.dense = true
  else
    entries = log.read(q, ids)
    local ahead = #ids < most and redis.call('XRANGE', q.log, '(' .. q.cursor, last, 'COUNT', most - #ids) or {}
    for i = 1, #ahead do
      entries[#entries + 1], entries.dense = ahead[i], nil
    end
  end
  if not skip or not next(skip) then
    return entries, #entries < most
  end
  local others = {}
  for _, entry in ipairs(entries) do
    if not skip[entry[1]] then others[#others + 1] = entry end
  end
  return others, #entries < most
end

--- Note the highest of these places in `trimmed`: nobody has handled those messages. Whoever follows the log learns from
-- it that he has missed something.
function ready.miss(q, entries)
  for _, entry in ipairs(entries) do
    if entry[1] > q.trimmed then q.trimmed = entry[1] end
  end
end

--- `remove` where nobody has handled the messages.
function ready.lose(q, entries, in_order)
  ready.miss(q, entries)
  ready.remove(q, entries, in_order)
end

--- Remove ready messages from the queue, for good. `in_order`: they are the next ones, so the cursor passes them.
function ready.remove(q, entries, in_order)
  local ids, size, cursor = {}, 0, q.cursor
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
    size = size + #entry[2][2]
    if in_order and entry[1] > cursor then cursor = entry[1] end
  end
  if #ids > 0 then
    log.remove(q, ids, entries.dense)
    redis.call('ZREM', q.expiry, unpack(ids))
    if redis.call('EXISTS', q.returned) == 1 then
      redis.call('ZREM', q.returned, unpack(ids))
    end
  end
  q.bytes, q.cursor = q.bytes - size, cursor
end
