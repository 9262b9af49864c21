--- The options of a queue, and their version.
--
-- @use    clock queue_lifetime reply
-- @keys   meta
-- @args   now
-- @reply  version options
-- @refuse not_found queue_expired: followed by the version and the options that were in force

local found = redis.call('HMGET', q.meta, 'version', 'options', 'option_set')
if not found[1] then
  return reply.refuse('not_found')
elseif found[3] == 'expiring' and queue_lifetime.read(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired', found[1], found[2])
end
return reply.ok(q, found[1], found[2])
