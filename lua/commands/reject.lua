--- Reject deliveries for good: their messages die with reason `rejected`.
--
-- @use     clock record lease refuse wakeup control reply
-- @keys    meta log detached leases failures wakeup waiters
-- @targets rejected
-- @args    version targets now replay description deliveries...
-- @reply   unknown lost: sequences that an earlier try may have settled, and sequences whose lease had ended
-- @refuse  not_found stale queue_expired

local now = clock.now(arg.now)
local refusal = record.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local held, lost, unknown = lease.held(q, now, arg.deliveries, arg.replay)
if #held > 0 then
  refuse.all(q, now, held, arg.description)
  if q.controlled then lazy(control).gate(q, now) end
  wakeup.ring(q, now)
end
record.save(q)
return reply.ok(q, unknown, lost)
