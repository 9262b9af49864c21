--- Look at messages in order, without touching them: ready, leased and delayed ones.
--
-- @use    clock page queue_lifetime budget reply
-- @keys   meta log detached leases requeued delayed failures
-- @args   now after limit
-- @reply  now retention entries facts: facts are, for each entry, state, until (ms or empty), failures as `failures` holds them
-- @refuse not_found queue_expired

local now, found = clock.now(arg.now), redis.call('HMGET', q.meta, 'version', 'message_ttl', 'option_set', 'large_upto')
if not found[1] then
  return reply.refuse('not_found')
end
if found[3] == 'expiring' then
  if lazy(queue_lifetime).read(q, now) then return reply.refuse('queue_expired') end
  lazy(queue_lifetime).mark_active(q, now)
  redis.call('HDEL', q.meta, '') -- so that what follows passes when memory is full
  lazy(queue_lifetime).save(q)
end
q.large_upto = budget.large_upto(found[4])
local entries = page.read(q, arg.after, tonumber(arg.limit))
local facts = {}
for i, entry in ipairs(entries) do
  local id = entry[1]
  local leased, delayed = redis.call('ZSCORE', q.leases, id), redis.call('ZSCORE', q.delayed, id)
  facts[3 * i - 2] = leased and 'leased' or delayed and 'delayed' or 'ready'
  facts[3 * i - 1] = leased and string.format('%.0f', math.floor(leased / 1000)) or delayed or ''
  facts[3 * i] = redis.call('HGET', q.failures, id) or '0'
end
return reply.ok(q, now, found[2] or '', entries, facts)
