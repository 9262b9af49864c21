--- When a queue is due.
--
-- @use ready lapse
local agenda = {}

--- When something is due next: the earliest of all leases, delays, own deadlines, the oldest message's retention, and
-- the end of the queue's lifetime.
function agenda.next(q)
  local earliest
  local function consider(at)
    if at and (not earliest or at < earliest) then earliest = at end
  end
  local first = redis.call('ZRANGE', q.leases, 0, 0, 'WITHSCORES')[2]
  consider(first and math.floor(first / 1000))
  consider(tonumber(redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]))
  consider(tonumber(redis.call('ZRANGE', q.expiry, 0, 0, 'WITHSCORES')[2]))
  if q.message_ttl then
    local oldest = ready.oldest(q)
    consider(oldest and oldest + q.message_ttl)
  end
  if q.life then consider(rare(lapse).ends(q)) end
  return earliest
end

--- For how long the oldest of what is due has been waiting, in ms; 0 if nothing is, or if only a limit has to act.
function agenda.overdue(q, now)
  local since = q.due_at and q.due_at <= now and rare(agenda).next(q) or now
  return math.max(0, now - since)
end
