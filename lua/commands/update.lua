--- Put other options in force, at once and for messages that are there already.
--
-- Ids are times, so a new retention needs no walk over the messages; a new limit acts in the sweep that follows.
--
-- @use    announce reply
-- @keys   meta
-- @args   version next given options...
-- @reply  done
-- @refuse not_found stale

local found = redis.call('HGET', q.meta, 'version')
if not found then
  return reply.refuse('not_found')
elseif found ~= arg.version then
  return reply.refuse('stale')
end
redis.call('HDEL', q.meta, 'message_ttl', 'default_ttl', 'min_ttl', 'max_ttl', 'never_expire', 'max_length',
  'max_length_bytes', 'max_deliveries')
redis.call('HSET', q.meta, 'version', arg.next, 'given', arg.given, 'adopted', 1, unpack(arg.options))
announce.now(q.meta)
return reply.ok(q, 1)
