--- Make a queue, or find it as it should be. One that only a dead letter has made is adopted. Its lifetime begins anew.
--
-- A call whose reply was lost is repeated with the same `version`, by which it knows the queue that it made.
-- A queue that is there needs no further memory, so that consumers can start while Redis has none left.
--
-- @use    clock options reaper_hint queue_lifetime reply
-- @keys   meta tombstone
-- @args   version now options fields...
-- @reply  made version: made is 1 if the queue is new, 2 if it was adopted, else 0
-- @refuse mismatch queue_expired: followed by the version and the options in force

local now, made, version = clock.now(arg.now), 0, arg.version
local found = redis.call('HMGET', q.meta, 'version', 'options', 'explicit', 'option_set')
if found[4] == 'expiring' and queue_lifetime.read(q, now) then
  return reply.refuse('queue_expired', found[1], found[2])
elseif found[3] == '1' and found[2] ~= arg.options then
  return reply.refuse('mismatch', found[1], found[2])
elseif not found[1] then
  options.create(q.meta, version, 1, now, options.last_seq(q.tombstone, now), arg.fields)
  redis.call('HSET', q.meta, 'options', arg.options)
  made = 1
else
  redis.call('HDEL', q.meta, '') -- so that it passes when memory is full
  if found[3] == '0' then
    redis.call('HSET', q.meta, 'version', version, 'explicit', 1, 'options', arg.options, unpack(arg.fields))
    reaper_hint.due_now(q.meta)
    made = 2
  elseif found[1] == version then
    made = 1
  end
  version = made == 0 and found[1] or version
end
queue_lifetime.restart(q, now)
return reply.ok(q, made, version)
