--- The options of a queue, and their version.
--
-- @use    clock lapse reply
-- @keys   meta
-- @args   now
-- @reply  version given
-- @refuse not_found lapsed: followed by the version and the options that were in force

local found = redis.call('HMGET', q.meta, 'version', 'given', 'plain')
if not found[1] then
  return reply.refuse('not_found')
elseif found[3] == 'mortal' and lapse.read(q, clock.now(arg.now)) then
  return reply.refuse('lapsed', found[1], found[2])
end
return reply.ok(q, found[1], found[2])
