--- Read the options of a queue: those in force with their version, those that were declared, and the version of the
-- policies that the options in force come from.
--
-- @use    clock queue_lifetime reply
-- @keys   meta
-- @args   now
-- @reply  version options declared policies
-- @refuse not_found queue_expired: followed by the version and the options that were in force

local version, options, declared, policies, option_set = unpack(redis.call('HMGET', q.meta, 'version', 'options',
  'declared', 'policies', 'option_set'))
if not version then
  return reply.refuse('not_found')
elseif option_set == 'expiring' and queue_lifetime.read(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired', version, options)
end
return reply.ok(q, version, options, declared, policies)
