--- Refuse deliveries for good: they die with reason `rejected`.
--
-- @use     clock queue record lease log dead_letter wake reply
-- @keys    meta log loose leases redelivered bell waiting
-- @targets rejected
-- @args    version targets now again description deliveries...
-- @reply   unknown lost: ids of which nobody knows whether an earlier try settled them, and ids whose lease had ended
-- @refuse  not_found stale lapsed

local now = clock.now(arg.now)
local refusal = queue.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local held, lost, unknown = lease.held(q, now, arg.deliveries, arg.again)
if #held > 0 then
  local entries = log.read(q, held)
  log.remove(q, held)
  redis.call('ZREM', q.leases, unpack(held))
  dead_letter.bury(q, now, 'rejected', entries, 1, arg.description)
  wake.ring(q, now)
end
record.save(q)
return reply.ok(q, unknown, lost)
