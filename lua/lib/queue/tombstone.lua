--- The end of a queue, and the trace of what was lost with it: whoever follows a log cannot ask a queue that is gone.
-- A trace ends by itself after a week, so nobody has to clean up behind queues that come and go.
--
-- @use record
local tombstone = {}
local KEPT = 604800000
local MOST = 1000

--- Delete the queue with all that is left of it. Where nothing was lost an earlier trace stays: it still holds.
function tombstone.delete_queue(q)
  local held, born = tombstone.highest(q), redis.call('HGET', q.meta, 'created_at')
  record.unlink(q)
  if held == '0-0' and q.trimmed_upto == '0-0' then return end
  redis.call('UNLINK', q.tombstone)
  redis.call('HSET', q.tombstone, 'created_at', born or 0, 'last_id', held, 'trimmed_upto', q.trimmed_upto)
  redis.call('PEXPIRE', q.tombstone, KEPT)
end

--- The highest place of a message in any state, or 0-0. What lies in `detached` is behind the cursor: ready, leased or
-- delayed. Of more than `MOST` leased and delayed ones nobody looks for the highest: no message there is beyond the cursor.
function tombstone.highest(q)
  local last = redis.call('XREVRANGE', q.log, '+', '-', 'COUNT', 1)[1]
  local high = last and last[1] or '0-0'
  if high > q.cursor or redis.call('HLEN', q.detached) == 0 then
    return high
  elseif redis.call('ZCARD', q.leases) + redis.call('ZCARD', q.delayed) > MOST then
    return q.cursor
  end
  for _, ids in ipairs({redis.call('ZRANGE', q.requeued, -1, -1), redis.call('ZRANGE', q.leases, 0, -1),
    redis.call('ZRANGE', q.delayed, 0, -1)}) do
    for _, id in ipairs(ids) do
      if id > high then high = id end
    end
  end
  return high
end
