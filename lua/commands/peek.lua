--- Look at messages in order without touching them: ready, leased and delayed ones.
--
-- @use    clock page queue_lifetime budget reply memory
-- @keys   meta log detached leases requeued delayed failures
-- @args   now after limit
-- @reply  now retention entries details: details are, for each entry, state, until (ms or empty) and the value of
-- @reply  `failures`
-- @refuse not_found queue_expired

local now = clock.now(arg.now)
local version, retention, option_set, large_upto = unpack(redis.call('HMGET', q.meta, 'version', 'message_ttl',
  'option_set', 'large_upto'))
if not version then
  return reply.refuse('not_found')
end
if option_set == 'expiring' then
  if lazy(queue_lifetime).read(q, now) then return reply.refuse('queue_expired') end
  lazy(queue_lifetime).mark_active(q, now)
  memory.may_pass(q)
  lazy(queue_lifetime).save(q)
end
q.large_upto = budget.large_upto(large_upto)
local entries = page.read(q, arg.after, tonumber(arg.limit))
local details = {}
for i, entry in ipairs(entries) do
  local seq = entry[1]
  local leased, delayed = redis.call('ZSCORE', q.leases, seq), redis.call('ZSCORE', q.delayed, seq)
  details[3 * i - 2] = leased and 'leased' or delayed and 'delayed' or 'ready'
  details[3 * i - 1] = leased and string.format('%.0f', math.floor(leased / 1000)) or delayed or ''
  details[3 * i] = redis.call('HGET', q.failures, seq) or '0'
end
return reply.ok(q, now, retention or '', entries, details)
