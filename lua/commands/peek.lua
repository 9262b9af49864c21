--- Look at messages in order without touching them, in any state.
--
-- @use    clock page queue_lifetime budget reply memory
-- @keys   meta log detached requeued states failures
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
  local name, ends
  for state in each('states') do
    local score = redis.call('ZSCORE', q[state.part], seq)
    if score and not name then name, ends = state.name, string.format('%.0f', math.floor(score / state.per_ms)) end
  end
  details[3 * i - 2], details[3 * i - 1] = name or 'ready', ends or ''
  details[3 * i] = redis.call('HGET', q.failures, seq) or '0'
end
return reply.ok(q, now, retention or '', entries, details)
