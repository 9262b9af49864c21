--- Settle deliveries: the work is done, forget the messages.
--
-- A late ack is reported, never applied: somebody else may hold the lease now. Needs no option of the queue, so it
-- works whatever has changed there.
--
-- @use    clock lease reply
-- @keys   meta log loose leases redelivered
-- @args   now again deliveries...
-- @reply  lost: ids whose lease had ended

local held, lost = lease.held(q, clock.now(arg.now), arg.deliveries, arg.again)
if #held > 0 then
  lease.finish(q, held)
  redis.call('HINCRBY', q.meta, 'acked', #held)
end
return reply.ok(q, lost)
