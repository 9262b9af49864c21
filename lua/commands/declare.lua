--- Create a queue, or check that it exists with these options. A queue that a dead letter created is adopted.
--
-- A call without a reply is repeated with the same `version`, which marks a queue that this call created. Declaring an
-- existing queue needs no memory, so consumers can start without free memory in Redis. Its lifetime restarts.
--
-- @use    clock options reaper_hint queue_lifetime reply memory
-- @keys   meta tombstone
-- @args   version now options fields...
-- @reply  made version: made is 1 if the queue is new, 2 if it was adopted, else 0
-- @refuse mismatch queue_expired: followed by the version and the options in force

local now, made = clock.now(arg.now), 0
local version, stored, explicit, option_set = unpack(redis.call('HMGET', q.meta, 'version', 'options', 'explicit',
  'option_set'))
if option_set == 'expiring' and queue_lifetime.read(q, now) then
  return reply.refuse('queue_expired', version, stored)
elseif explicit == '1' and stored ~= arg.options then
  return reply.refuse('mismatch', version, stored)
elseif not version then
  version = arg.version
  options.create(q.meta, version, 1, now, options.last_seq(q.tombstone, now), arg.fields)
  redis.call('HSET', q.meta, 'options', arg.options)
  made = 1
else
  memory.may_pass(q)
  if explicit == '0' then
    version = arg.version
    redis.call('HSET', q.meta, 'version', version, 'explicit', 1, 'options', arg.options, unpack(arg.fields))
    reaper_hint.due_now(q.meta)
    made = 2
  elseif version == arg.version then
    made = 1
  end
end
queue_lifetime.restart(q, now)
return reply.ok(q, made, version)
