--- Put other options in force, at once and for messages that are there already.
--
-- Ids are times, so a new retention needs no walk over the messages; a new limit acts in the sweep that follows.
-- The first `absent` of `fields` are names of options that are not set, the others are options, name and value in turn.
--
-- @use    clock announce lapse reply
-- @keys   meta
-- @args   version now next options absent fields...
-- @reply  done
-- @refuse not_found stale queue_expired

local found = redis.call('HGET', q.meta, 'version')
if not found then
  return reply.refuse('not_found')
elseif found ~= arg.version then
  return reply.refuse('stale')
elseif lapse.is_over(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired')
end
redis.call('HDEL', q.meta, 'retention_scan', unpack(arg.fields, 1, tonumber(arg.absent)))
redis.call('HSET', q.meta, 'version', arg.next, 'options', arg.options, 'explicit', 1,
  unpack(arg.fields, arg.absent + 1))
announce.now(q.meta)
lapse.renew(q, clock.now(arg.now))
return reply.ok(q, 1)
