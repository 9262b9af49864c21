--- Change the set of policies: store some and remove some, unless another client changed the set meanwhile.
--
-- The first `removed` of `fields` are names of fields to remove; the others are fields to store, name and JSON in turn.
-- `expected` is the version of the set that the caller read, `next` the version after it.
--
-- @use    reply
-- @shared policies
-- @args   expected next removed fields...
-- @reply  version
-- @refuse stale: followed by the version of the set

local version, removed = redis.call('HGET', q.policies, 'version') or '0', tonumber(arg.removed)
if version ~= arg.expected then
  return reply.refuse('stale', version)
end
if removed > 0 then
  redis.call('HDEL', q.policies, unpack(arg.fields, 1, removed))
end
redis.call('HSET', q.policies, 'version', arg.next, unpack(arg.fields, removed + 1))
return reply.ok(q, arg.next)
