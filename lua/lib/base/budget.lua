--- The budget of a call: scripts read at most 4 MB of headers and bodies, and the message that exceeds them.
--
-- Redis returns whole messages only, so each read is bounded before it is made. The field `large_upto` of the record is
-- a sequence: no message beyond it has more than `SMALL` bytes. No message up to it has more than `largest_bytes`. A
-- call may renew its budget where messages that come back push others out: only reading tells how many must go.
--
-- @use states
local budget = {}
local READ_BYTES = 4194304
local SMALL = 16384
local unread = READ_BYTES

--- The field `large_upto` of the record as commands use it: nil where it is empty.
function budget.large_upto(field)
  return field and field ~= '' and field or nil
end

--- Return whether the call may read more.
function budget.is_open()
  return unread > 0
end

--- Start a new budget. Earlier reads of the call do not count.
function budget.renew()
  unread = READ_BYTES
end

--- Reserve half of the budget for later reads. `budget.release` returns it.
function budget.keep_half()
  unread = unread - READ_BYTES / 2
end

--- Return the reserved half of the budget.
function budget.release()
  unread = unread + READ_BYTES / 2
end

--- The number of messages that one read may ask for, at most `most`. `large`: large messages are among them. The budget
-- must be open.
function budget.page_size(q, large, most)
  local size = large and lazy(budget).largest(q, large) or SMALL
  return math.max(1, math.min(most, math.floor(unread / size)))
end

--- The bytes of header and body that one message has at most. `large`: large messages are among them.
function budget.largest(q, large)
  if not large then return SMALL end
  q.largest_bytes = q.largest_bytes or tonumber(redis.call('HGET', q.meta, 'largest_bytes')) or READ_BYTES
  return q.largest_bytes
end

--- Charge the budget for these entries.
function budget.spend(entries)
  for i = 1, #entries do
    local parts = entries[i][2]
    unread = unread - #parts[1] - #parts[2]
  end
end

--- Note a large message: `size` bytes of header and body under `seq`, the last sequence of the queue.
function budget.note_large(q, seq, size)
  local large_upto, largest = unpack(redis.call('HMGET', q.meta, 'large_upto', 'largest_bytes'))
  q.large_upto, q.largest_bytes = seq, math.max(size, budget.large_upto(large_upto) and tonumber(largest) or 0)
  redis.call('HSET', q.meta, 'large_upto', seq, 'largest_bytes', string.format('%d', q.largest_bytes))
  if q.was then q.was.large_upto = seq end
end

--- Clear `large_upto` once no message up to it can be left.
function budget.forget_large(q)
  if q.large_upto and q.large_upto <= q.cursor and lazy(states).count_away(q) == 0
    and (redis.call('ZRANGE', q.requeued, 0, 0)[1] or '~') > q.large_upto then
    q.large_upto = nil
  end
end
