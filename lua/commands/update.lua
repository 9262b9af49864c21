--- Put other options of a queue in force, at once and also for existing messages.
--
-- A user declares other options (`declared`), or the policies ask for others (`declared` is empty). `was` is the
-- version of the policies that the caller read in the record; `options` and `fields` come from the version `policies`.
-- A change by policies is no use of the queue. Its lifetime restarts only if the policies gave it another one.
-- Sequences are times, so a new retention needs no walk over messages. A new limit acts in the next sweep.
-- The first `absent` of `fields` are names of unset options; the others are options, name and value in turn.
--
-- @use    clock options reaper_hint queue_lifetime wakeup reply
-- @keys   meta wakeup waiters
-- @args   version now next declared options was policies absent fields...
-- @reply  done
-- @refuse not_found stale queue_expired

local version, known, in_force, expires, idle, passed_on = unpack(redis.call('HMGET', q.meta, 'version', 'policies',
  'options', 'expires', 'auto_delete_on_idle', 'passes_on'))
if not version then
  return reply.refuse('not_found')
elseif version ~= arg.version or known ~= arg.was then
  return reply.refuse('stale')
elseif queue_lifetime.is_over(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired')
end
local declares = arg.declared ~= ''
if not declares and in_force == arg.options then
  redis.call('HSET', q.meta, 'policies', arg.policies)
  return reply.ok(q, 1)
end
redis.call('HDEL', q.meta, 'retention_scan')
options.put(q.meta, arg.options, arg.policies, arg.declared, arg.absent, arg.fields)
redis.call('HSET', q.meta, 'version', arg.next)
if declares then redis.call('HSET', q.meta, 'explicit', 1) end
reaper_hint.due_now(q.meta)
if declares or not options.same(q.meta, expires, idle) then
  queue_lifetime.restart(q, clock.now(arg.now))
end
if not passed_on then wakeup.send_away(q, clock.now(arg.now)) end
return reply.ok(q, 1)
