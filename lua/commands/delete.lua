--- Delete a queue with all its messages. Nothing is dead-lettered; a tombstone records the loss. Consumers that wait
-- learn of the deletion at once. A `known` version that is not empty must be that of the queue.
--
-- @use    clock record tombstone reply ready outbox
-- @keys   *
-- @args   now known if_unused if_empty
-- @reply  removed: the number of ready messages
-- @refuse not_found stale in_use: followed by the condition and the number of consumers or messages

local now, version = clock.now(arg.now), redis.call('HGET', q.meta, 'version')
local refusal = record.open_all(q, version or '')
if refusal then
  return reply.refuse(refusal)
elseif arg.known ~= '' and arg.known ~= version then
  return reply.refuse('stale')
end
local users = redis.call('ZCOUNT', q.consumers, string.format('(%.0f', now), '+inf')
local messages = arg.if_empty ~= '' and redis.call('XLEN', q.log) + redis.call('HLEN', q.detached)
  + redis.call('ZCARD', q.scheduled) + outbox.redriving(q)
if arg.if_unused ~= '' and users > 0 then
  return reply.refuse('in_use', 'if_unused', users)
elseif messages and messages > 0 then
  return reply.refuse('in_use', 'if_empty', messages)
end
local removed = ready.count(q)
tombstone.delete_queue(q, now)
return reply.ok(q, removed)
