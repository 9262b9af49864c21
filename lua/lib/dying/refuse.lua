--- Rejected deliveries: their messages die in steps, so that not all of them are in memory at once.
--
-- @use stale log dead_letter budget
local refuse = {}

--- Reject these deliveries.
function refuse.all(q, now, seqs, description)
  local at = 0
  while at < #seqs do
    budget.renew()
    local entries, looked = stale.read(q, q.leases, {unpack(seqs, at + 1)})
    local read = {unpack(seqs, at + 1, at + looked)}
    log.remove(q, read)
    redis.call('ZREM', q.leases, unpack(read))
    dead_letter.bury(q, now, 'rejected', entries, 1, description)
    at = at + looked
  end
end
