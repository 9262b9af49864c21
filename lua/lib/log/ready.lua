--- Ready messages: first those of `requeued`, which came back or were moved aside, then those ahead of the cursor.
--
-- @use log stale
local ready = {}

--- The number of ready messages, in constant time: all messages but those in another state.
function ready.count(q)
  local count = redis.call('XLEN', q.log) + redis.call('HLEN', q.detached)
  for state in each('states') do
    count = count - redis.call('ZCARD', q[state.part])
  end
  return count
end

--- Up to `most` ready entries in order, as far as the budget goes, up to the instant `upto` in ms. The second result
-- is true if these are all. `dense` is set if they are neighbours in the log.
function ready.read(q, most, upto)
  local last = upto and string.format('%d', upto) or '+'
  local seqs = redis.call('ZRANGEBYSCORE', q.requeued, '-inf', upto or '+inf', 'LIMIT', 0, most)
  if #seqs == 0 then
    local entries, all = log.range(q, q.cursor, last, most)
    entries.dense = true
    return entries, all
  end
  local entries, looked = stale.read(q, q.requeued, seqs)
  if looked < #seqs or #seqs == most then
    return entries, false
  end
  local ahead, all = log.range(q, q.cursor, last, most - #seqs)
  entries.dense = #ahead == 0 and entries.dense
  return log.join(entries, ahead), all
end

--- Up to `most` ready entries in order after `after`, up to `upto`, as far as the budget goes. The second result says
-- whether these are all.
function ready.between(q, after, upto, most)
  local seqs, more = ready.requeued_between(q, after, upto, most)
  local entries, looked = stale.read(q, q.requeued, seqs)
  if more or looked < #seqs then
    return entries, false
  end
  local from = after > q.cursor and after or q.cursor
  local ahead, all = log.range(q, from, log.ms_digits(upto), most - #seqs)
  while #ahead > 0 and ahead[#ahead][1] > upto do
    ahead[#ahead], all = nil, true
  end
  if #entries == 0 then
    ahead.dense = true
    return ahead, all
  end
  entries.dense = #ahead == 0 and entries.dense
  return log.join(entries, ahead), all
end

--- At most `most` sequences of `requeued` after `after`, up to `upto`. The second result is true if there may be more.
-- Scores are milliseconds, so the first pages may have sequences of the same millisecond that lie before.
function ready.requeued_between(q, after, upto, most)
  local seqs, offset, page = {}, 0
  repeat
    page = redis.call('ZRANGEBYSCORE', q.requeued, log.ms_digits(after), log.ms_digits(upto), 'LIMIT', offset, most)
    for _, seq in ipairs(page) do
      if seq > after and seq <= upto then seqs[#seqs + 1] = seq end
    end
    offset = offset + #page
  until #page < most or #seqs > 0
  return seqs, #page == most
end

--- The ms in which the oldest ready message was stored, or nil. The result for the log is kept: reading it reads a
-- body.
function ready.oldest(q)
  local first = redis.call('ZRANGE', q.requeued, 0, 0, 'WITHSCORES')[2]
  if first then return tonumber(first) end
  if q.head_after ~= q.cursor then
    local entry = redis.call('XRANGE', q.log, '(' .. q.cursor, '+', 'COUNT', 1)[1]
    q.head, q.head_after = entry and log.ms(entry[1]), q.cursor
  end
  return q.head
end

--- Record the loss of unhandled messages: `trimmed_upto` is the highest of their sequences. Readers of the log missed
-- them.
function ready.record_loss(q, entries)
  for _, entry in ipairs(entries) do
    if entry[1] > q.trimmed_upto then q.trimmed_upto = entry[1] end
  end
end

--- Remove unhandled messages and record the loss.
function ready.remove_unhandled(q, entries, from_head)
  ready.record_loss(q, entries)
  ready.remove(q, entries, from_head)
end

--- Remove ready messages for good. `from_head`: they are the next ones in order, so the cursor passes them, but for
-- those of `requeued`: a redrive may have put them back ahead of it, behind others.
function ready.remove(q, entries, from_head)
  local seqs, size = log.seqs(entries), log.size(entries)
  local came_back = #seqs > 0 and redis.call('EXISTS', q.requeued) == 1
  if from_head then
    local back = came_back and redis.call('ZMSCORE', q.requeued, unpack(seqs)) or {}
    for i, seq in ipairs(seqs) do
      if seq > q.cursor and not back[i] then q.cursor = seq end
    end
  end
  if #seqs > 0 then
    log.remove(q, seqs, entries.dense)
    redis.call('ZREM', q.expiry, unpack(seqs))
    if came_back then redis.call('ZREM', q.requeued, unpack(seqs)) end
    q.head_after = nil
  end
  q.ready_bytes = q.ready_bytes - size
end
