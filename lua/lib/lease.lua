--- Leases: the right to settle a delivery, until a deadline. The deadline in microseconds is also the token, so the
-- token of a lease that ended never fits the next lease of the same message.
--
-- @use queue log
local lease = {}

--- Which of the deliveries (id and token in turn) are still held, and which are lost.
-- `again` = the settle may have been carried out already: a message that is gone is neither held nor lost then.
-- `again` = 'back' for one that gives back: a message that nobody holds is neither, then.
function lease.held(q, now, deliveries, again)
  local ids, held, lost = {}, {}, {}
  for i = 1, #deliveries, 2 do
    ids[#ids + 1] = deliveries[i]
  end
  if #ids == 0 then
    return held, lost
  end
  local ends = redis.call('ZMSCORE', q.leases, unpack(ids))
  for i, id in ipairs(ids) do
    local at = tonumber(ends[i])
    if at and at == tonumber(deliveries[2 * i]) and at >= (now + 1) * 1000 then
      held[#held + 1] = id
    elseif again == '' or at or again ~= 'back' and rare(log).find(q, id) then
      lost[#lost + 1] = id
    end
  end
  return held, lost
end

--- Lease these messages. `grants` fills the digits below a millisecond, so that no two grants give the same token.
function lease.grant(q, ends, grants, ids)
  local token, members = string.format('%.0f', ends * 1000 + grants % 1000), {}
  for i, id in ipairs(ids) do
    members[2 * i - 1], members[2 * i] = token, id
  end
  for i = 1, #members, 1000 do
    redis.call('ZADD', q.leases, unpack(members, i, math.min(i + 999, #members)))
  end
  return token
end

--- The work is done: forget the messages.
function lease.finish(q, ids)
  if #ids > 0 then
    log.remove(q, ids)
    redis.call('ZREM', q.leases, unpack(ids))
    if redis.call('EXISTS', q.redelivered) == 1 then
      redis.call('HDEL', q.redelivered, unpack(ids))
    end
  end
end
