--- Deliveries that are refused for good: they die, in steps, so that not all of them are in memory at once.
--
-- @use stale log dead_letter budget
local refuse = {}

function refuse.all(q, now, ids, description)
  local at = 0
  while at < #ids do
    budget.renew()
    local entries, looked = stale.read(q, q.leases, {unpack(ids, at + 1)})
    local gone = {unpack(ids, at + 1, at + looked)}
    log.remove(q, gone)
    redis.call('ZREM', q.leases, unpack(gone))
    dead_letter.bury(q, now, 'rejected', entries, 1, description)
    at = at + looked
  end
end
