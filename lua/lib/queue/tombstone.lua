--- Tombstones: the deletion of a queue, and a record of lost messages for readers that follow its log.
--
-- Redis removes a tombstone after a week, so no process has to clean up behind queues that come and go.
--
-- @use record states
local tombstone = {}
local LIFETIME = 604800000
local MOST = 1000

--- Delete the queue with all its messages. If no message is lost, an older tombstone stays: it still holds.
function tombstone.delete_queue(q)
  local highest, born = tombstone.highest(q), redis.call('HGET', q.meta, 'created_at')
  record.unlink(q)
  if highest == '0-0' and q.trimmed_upto == '0-0' then return end
  redis.call('UNLINK', q.tombstone)
  redis.call('HSET', q.tombstone, 'created_at', born or 0, 'last_id', highest, 'trimmed_upto', q.trimmed_upto)
  redis.call('PEXPIRE', q.tombstone, LIFETIME)
end

--- The highest sequence of a message in any state, or 0-0. Messages of `detached` lie behind the cursor. With more than
-- `MOST` messages that are not ready the cursor stands for the highest of them: none lies beyond it.
function tombstone.highest(q)
  local last = redis.call('XREVRANGE', q.log, '+', '-', 'COUNT', 1)[1]
  local high = last and last[1] or '0-0'
  if high > q.cursor or redis.call('HLEN', q.detached) == 0 then
    return high
  elseif states.count_away(q) > MOST then
    return q.cursor
  end
  local requeued = redis.call('ZRANGE', q.requeued, -1, -1)[1]
  if requeued and requeued > high then high = requeued end
  for state in each('states') do
    for _, seq in ipairs(redis.call('ZRANGE', q[state.part], 0, -1)) do
      if seq > high then high = seq end
    end
  end
  return high
end
