--- Read the options of a queue and their version.
--
-- @use    clock queue_lifetime reply
-- @keys   meta
-- @args   now
-- @reply  version options
-- @refuse not_found queue_expired: followed by the version and the options that were in force

local version, options, option_set = unpack(redis.call('HMGET', q.meta, 'version', 'options', 'option_set'))
if not version then
  return reply.refuse('not_found')
elseif option_set == 'expiring' and queue_lifetime.read(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired', version, options)
end
return reply.ok(q, version, options)
