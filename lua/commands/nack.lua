--- Give deliveries back: ready again at their old place, or after `delay` ms; dead if their time is over.
--
-- `counted` is 0 for what a consumer never looked at: that is no failed delivery.
--
-- @use     clock queue record lease returns length dead_letter wake reply
-- @keys    meta log loose expiry leases returned delayed redelivered bell waiting
-- @targets expired maxlen delivery_limit
-- @args    version targets now again delay counted deliveries...
-- @reply   lost: ids whose lease had ended
-- @refuse  not_found stale lapsed

local now = clock.now(arg.now)
local refusal = queue.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local delay = tonumber(arg.delay)
local held, lost = lease.held(q, now, arg.deliveries, arg.again ~= '' and 'back' or '')
returns.back(q, now, q.leases, held, tonumber(arg.counted), delay > 0 and now + delay or nil)
if length.hold(q, now, #held + 250) then
  queue.due_by(q, now)
end
if #held > 0 then
  wake.ring(q, now)
end
record.save(q)
return reply.ok(q, lost)
