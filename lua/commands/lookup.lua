--- The options of a queue, and their version.
--
-- @use    reply
-- @keys   meta
-- @args
-- @reply  version given
-- @refuse not_found

local found = redis.call('HMGET', q.meta, 'version', 'given')
if not found[1] then
  return reply.refuse('not_found')
end
return reply.ok(q, found[1], found[2])
