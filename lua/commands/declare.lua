--- Make a queue, or find it as it should be. One that only a dead letter has made is adopted.
--
-- @use    options announce reply
-- @keys   meta
-- @args   version given options...
-- @reply  made: 1 if the queue is new
-- @refuse mismatch: followed by the version and the options in force

local found = redis.call('HMGET', q.meta, 'version', 'given', 'adopted')
if not found[1] then
  options.create(q.meta, arg.version, 1, arg.options)
  redis.call('HSET', q.meta, 'given', arg.given)
  return reply.ok(q, 1)
elseif found[3] == '1' and found[2] ~= arg.given then
  return reply.refuse('mismatch', found[1], found[2])
elseif found[3] == '0' then
  redis.call('HSET', q.meta, 'version', arg.version, 'adopted', 1, 'given', arg.given, unpack(arg.options))
  announce.now(q.meta)
end
return reply.ok(q, 0)
