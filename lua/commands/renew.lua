--- Extend leases by `lease` ms from now. The new deadline is the new token.
--
-- @use    clock queue lease reply
-- @keys   meta log loose leases
-- @args   now lease deliveries...
-- @reply  token lost: one token for all that are still held

local now, token = clock.now(arg.now), ''
local held, lost = lease.held(q, now, arg.deliveries, '')
if #held > 0 then
  redis.call('ZREM', q.leases, unpack(held))
  token = lease.grant(q, now + tonumber(arg.lease), redis.call('HINCRBY', q.meta, 'grants', 1), held)
end
return reply.ok(q, token, lost)
