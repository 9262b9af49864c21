--- Extend leases to `lease` ms from now. The new deadline makes a new token.
--
-- @use    clock record queue_lifetime lease reaper_hint reply
-- @keys   meta log detached leases
-- @args   now lease deliveries...
-- @reply  token lost: one token for all that are still held
-- @refuse not_found queue_expired

local now, token = clock.now(arg.now), ''
local option_set, due_at = unpack(redis.call('HMGET', q.meta, 'option_set', 'due_at'))
if not option_set then
  return reply.refuse('not_found')
elseif option_set == 'expiring' and lazy(queue_lifetime).read(q, now) then
  return reply.refuse('queue_expired')
end
local held, lost = lease.held(q, now, arg.deliveries, '')
if #held > 0 then
  local ends = now + tonumber(arg.lease)
  redis.call('ZREM', q.leases, unpack(held))
  token = lease.token(ends, redis.call('HINCRBY', q.meta, 'lease_grants', 1) - 1)
  lease.grant(q, token, held)
  -- a renewal may also shorten a lease
  q.due_at = tonumber(due_at)
  record.schedule_sweep(q, ends)
  if q.hint then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', ends))
    reaper_hint.send(q.meta, ends)
  end
end
return reply.ok(q, token, lost)
