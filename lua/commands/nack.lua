--- Give deliveries back: ready again in their old place, or after `delay` ms; dead if their time is over.
--
-- Without a `delay` (empty) the delay of the queue acts on a failed delivery. `counted` is 0 for messages that the
-- consumer never looked at: they have not failed. `description` is the error of the delivery, or empty.
--
-- @use     clock record lease restore limits expiry wakeup control reply
-- @keys    meta log detached expiry requeued states failures wakeup waiters
-- @targets expired maxlen delivery_limit
-- @args    version targets now replay delay counted description deliveries...
-- @reply   unknown lost: sequences that an earlier try may have settled, and sequences whose lease had ended
-- @refuse  not_found stale queue_expired

local now = clock.now(arg.now)
local refusal = record.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local held, lost, unknown = lease.held(q, now, arg.deliveries, arg.replay ~= '' and 'back' or '')
local mode = {counted = tonumber(arg.counted), delay = tonumber(arg.delay), description = arg.description,
  wholly = true}
if #held > 0 then
  -- overdue messages make room before live ones
  mode.crowded = limits.drops_oldest(q) and q.due_at and q.due_at <= now and lazy(expiry).make_room(q, now, 250)
  restore.run(q, now, q.leases, held, mode)
  if q.controlled then lazy(control).gate(q, now) end
  wakeup.ring(q, now)
end
record.save(q)
return reply.ok(q, unknown, lost)
