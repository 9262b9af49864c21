--- Create a queue, or check that it was declared with these options. A queue that a dead letter created is adopted.
--
-- A call without a reply is repeated with the same `version`, which marks a queue that this call created. Declaring an
-- existing queue needs no memory, so consumers can start without free memory in Redis. Its lifetime restarts. An
-- adoption with policies that are older than those in force is `stale`: messages might die by options of the past. The
-- caller may have `seen` that version in the record, if it cannot read all policies and keeps options in force.
-- `options` and `fields` are the options in force: those `declared`, and the policies of the version `policies`. The
-- first `absent` of `fields` are names of unset options; the others are options, name and value in turn. With an empty
-- `declared` the call makes a missing queue, as a dead letter does, and changes no other.
--
-- @use    clock options reaper_hint queue_lifetime wakeup reply memory
-- @keys   meta wakeup tombstone outgoing waiters
-- @args   version now declared options policies seen absent fields...
-- @reply  made version policies options: made is 1 if the queue is new, 2 if it was adopted, else 0. `policies` is the
-- @reply  version that the options in force come from, `options` those in force where they are other ones
-- @refuse mismatch stale queue_expired: mismatch is followed by the declared options, queue_expired by the version and
-- @refuse the options in force

local made
local now, policies, other = clock.now(arg.now), arg.policies, ''
local version, declared, stored, explicit, option_set, known = unpack(redis.call('HMGET', q.meta, 'version',
  'declared', 'options', 'explicit', 'option_set', 'policies'))
if option_set == 'expiring' and queue_lifetime.read(q, now) then
  return reply.refuse('queue_expired', version, stored)
elseif explicit and arg.declared == '' then
  return reply.ok(q, 0, version, known, '')
elseif explicit == '1' and declared ~= arg.declared then
  return reply.refuse('mismatch', declared)
elseif explicit == '0' and known ~= arg.seen and (tonumber(known) or 0) > tonumber(policies) then
  return reply.refuse('stale')
elseif not version then
  version = arg.version
  options.create(q.meta, version, arg.declared ~= '' and 1 or 0, now, options.last_seq(q.tombstone, now))
  redis.call('UNLINK', q.wakeup)
  options.put(q.meta, arg.options, arg.policies, arg.declared, arg.absent, arg.fields)
  made = 1
else
  memory.may_pass(q)
  if explicit == '0' then
    version = arg.version
    options.put(q.meta, arg.options, arg.policies, arg.declared, arg.absent, arg.fields)
    redis.call('HSET', q.meta, 'version', version, 'explicit', 1)
    reaper_hint.due_now(q.meta)
    wakeup.send_away(q, now)
    made = 2
  else
    made, policies = version == arg.version and 1 or 0, known
    if stored ~= arg.options then other = stored end
  end
end
if made > 0 and redis.call('EXISTS', q.outgoing) == 1 then -- dead letters of a deleted queue of this name
  reply.note(q, 'move', reaper_hint.queue_name(q.meta))
  redis.call('HSET', q.meta, 'outgoing_at', 0)
  reaper_hint.due_now(q.meta)
end
queue_lifetime.restart(q, now)
return reply.ok(q, made, version, policies, other)
