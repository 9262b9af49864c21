--- Ready messages: those given back or moved aside (`requeued`), then those ahead of the cursor in the log.
--
-- @use log stale
local ready = {}

--- The number of ready messages, in constant time.
function ready.count(q)
  return redis.call('XLEN', q.log) + redis.call('HLEN', q.detached) - redis.call('ZCARD', q.leases)
    - redis.call('ZCARD', q.delayed)
end

--- Up to `most` ready entries in order, as far as the budget goes. `upto` ends them at an instant (in ms).
-- The second result says whether that was all there is. `dense` is set where they are neighbours in the log.
function ready.read(q, most, upto)
  local last = upto and string.format('%d', upto) or '+'
  local ids = redis.call('ZRANGEBYSCORE', q.requeued, '-inf', upto or '+inf', 'LIMIT', 0, most)
  if #ids == 0 then
    local entries, all = log.range(q, q.cursor, last, most)
    entries.dense = true
    return entries, all
  end
  local entries, looked = stale.read(q, q.requeued, ids)
  if looked < #ids or #ids == most then
    return entries, false
  end
  local ahead, all = log.range(q, q.cursor, last, most - #ids)
  entries.dense = #ahead == 0 and entries.dense
  return log.join(entries, ahead), all
end

--- The ms in which the oldest ready message came, or nil. Ahead of the cursor it comes with its message, so it is kept.
function ready.oldest(q)
  local first = redis.call('ZRANGE', q.requeued, 0, 0, 'WITHSCORES')[2]
  if first then return tonumber(first) end
  if q.head_after ~= q.cursor then
    local entry = redis.call('XRANGE', q.log, '(' .. q.cursor, '+', 'COUNT', 1)[1]
    q.head, q.head_after = entry and tonumber(string.sub(entry[1], 1, 13)), q.cursor
  end
  return q.head
end

--- Note the highest of these places in `trimmed`: nobody has handled those messages, and who follows the log missed them.
function ready.record_loss(q, entries)
  for _, entry in ipairs(entries) do
    if entry[1] > q.trimmed_upto then q.trimmed_upto = entry[1] end
  end
end

--- `remove` where nobody has handled the messages.
function ready.remove_unhandled(q, entries, in_order)
  ready.record_loss(q, entries)
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
    if redis.call('EXISTS', q.requeued) == 1 then
      redis.call('ZREM', q.requeued, unpack(ids))
    end
    q.head_after = nil
  end
  q.ready_bytes, q.cursor = q.ready_bytes - size, cursor
end
