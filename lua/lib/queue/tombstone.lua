--- Tombstones: the deletion of a queue, and a record of it and of lost messages for readers that follow its log.
--
-- Every deletion leaves one. So a queue that is missing without a tombstone was not deleted: Redis has forgotten it.
-- Redis removes a tombstone after a week, so no process has to clean up behind queues that come and go.
--
-- @use record states wakeup
local tombstone = {}
local LIFETIME = 604800000
local MOST = 1000

--- Delete the queue with all its messages, and wake its waiting consumers. If no message is lost, the loss in an older
-- tombstone stays: it still holds.
function tombstone.delete_queue(q, now)
  local highest, born = tombstone.highest(q), redis.call('HGET', q.meta, 'created_at')
  local waiting = q.has_waiters ~= '0' and lazy(wakeup).waiting(q, now) or 0
  record.unlink(q)
  if waiting > 0 then lazy(wakeup).dismiss(q, waiting) end
  -- a key of another type answers with an error, and is replaced
  local older = redis.pcall('HGET', q.tombstone, 'created_at')
  if highest ~= '0-0' or q.trimmed_upto ~= '0-0' or type(older) ~= 'string' then
    redis.call('UNLINK', q.tombstone)
    redis.call('HSET', q.tombstone, 'created_at', born or 0, 'last_id', highest, 'trimmed_upto', q.trimmed_upto)
  end
  redis.call('HSET', q.tombstone, 'deleted', born or 0)
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
