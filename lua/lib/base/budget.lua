--- How much one call of a script reads: 4 MB of headers and bodies, and the message that exceeds them.
--
-- Redis gives no part of a message without the whole of it, so a read is bounded before it is made. No message beyond
-- the sequence `large` of the record has more than `SMALL` bytes; none at or before it has more than `largest`.
-- Where what comes back must push others out, the budget may begin anew: how much must go is known only when it was read.
local budget = {}
local READ_BYTES = 4194304
local SMALL = 16384
local unread = READ_BYTES

--- The field `large` of the record as commands use it: nil where it says nothing.
function budget.large_upto(field)
  return field and field ~= '' and field or nil
end

--- Whether anything may still be read.
function budget.is_open()
  return unread > 0
end

--- Reading begins anew: for what must be read in this call, however much was read before.
function budget.renew()
  unread = READ_BYTES
end

--- Keep half of the budget for what comes later; `budget.release` gives it back.
function budget.keep_half()
  unread = unread - READ_BYTES / 2
end

function budget.release()
  unread = unread + READ_BYTES / 2
end

--- How many messages may be read at once, at most `most`, where large ones are among them or not. The budget is open.
function budget.page_size(q, large, most)
  local size = large and lazy(budget).largest(q, large) or SMALL
  return math.max(1, math.min(most, math.floor(unread / size)))
end

--- The most that one message has, header and body, where large ones are among them or not.
function budget.largest(q, large)
  if not large then return SMALL end
  q.largest_bytes = q.largest_bytes or tonumber(redis.call('HGET', q.meta, 'largest_bytes')) or READ_BYTES
  return q.largest_bytes
end

--- These entries were read.
function budget.spend(entries)
  for i = 1, #entries do
    local parts = entries[i][2]
    unread = unread - #parts[1] - #parts[2]
  end
end

--- A message of `size` bytes, header and body, has arrived under `id`, the last one given out.
function budget.note_large(q, id, size)
  local m = redis.call('HMGET', q.meta, 'large_upto', 'largest_bytes')
  q.large_upto, q.largest_bytes = id, math.max(size, m[1] and m[1] ~= '' and tonumber(m[2]) or 0)
  redis.call('HSET', q.meta, 'large_upto', id, 'largest_bytes', string.format('%d', q.largest_bytes))
  if q.was then q.was.large_upto = id end
end

--- Forget where the large messages are, once nothing at or before that place can be there.
function budget.forget_large(q)
  if q.large_upto and q.large_upto <= q.cursor and redis.call('ZCARD', q.leases) + redis.call('ZCARD', q.delayed) == 0
    and (redis.call('ZRANGE', q.requeued, 0, 0)[1] or '~') > q.large_upto then
    q.large_upto = nil
  end
end
