--- Change the options of a queue, at once and also for existing messages.
--
-- Sequences are times, so a new retention needs no walk over messages. A new limit acts in the next sweep.
--
-- @use    clock reaper_hint queue_lifetime reply
-- @keys   meta
-- @args   version now next options fields...
-- @reply  done
-- @refuse not_found stale queue_expired

local found = redis.call('HGET', q.meta, 'version')
if not found then
  return reply.refuse('not_found')
elseif found ~= arg.version then
  return reply.refuse('stale')
elseif queue_lifetime.is_over(q, clock.now(arg.now)) then
  return reply.refuse('queue_expired')
end
redis.call('HDEL', q.meta, 'message_ttl', 'default_ttl', 'min_ttl', 'max_ttl', 'never_expire', 'max_length',
  'max_length_bytes', 'max_deliveries', 'expires', 'auto_delete_on_idle', 'on_expire',
  'duplicate_window', 'redelivery_delay', 'redelivery_multiplier', 'redelivery_max_delay', 'redelivery_jitter',
  'retention_scan')
redis.call('HSET', q.meta, 'version', arg.next, 'options', arg.options, 'explicit', 1, unpack(arg.fields))
reaper_hint.due_now(q.meta)
queue_lifetime.restart(q, clock.now(arg.now))
return reply.ok(q, 1)
