--- Change the options of a queue, at once and also for existing messages.
--
-- Sequences are times, so a new retention needs no walk over messages. A new limit acts in the next sweep.
-- The first `absent` of `fields` are names of unset options; the others are options, name and value in turn.
--
-- @use    clock reaper_hint queue_lifetime reply
-- @keys   meta
-- @args   version now next options absent fields...
-- @reply  done
-- @refuse not_found stale queue_expired

local version = redis.call('HGET', q.meta, 'version')
if not version then
  return reply.refuse('not_found')
elseif version ~= arg.version then
  return reply.refuse('stale')
elseif queue_lifetime.is_over(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired')
end
redis.call('HDEL', q.meta, 'retention_scan', unpack(arg.fields, 1, tonumber(arg.absent)))
redis.call('HSET', q.meta, 'version', arg.next, 'options', arg.options, 'explicit', 1,
  unpack(arg.fields, arg.absent + 1))
reaper_hint.due_now(q.meta)
queue_lifetime.restart(q, clock.now(arg.now))
return reply.ok(q, 1)
