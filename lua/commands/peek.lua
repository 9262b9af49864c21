--- Look at messages in order without touching them, in any state. With an `id` only those that have it are shown.
--
-- @use    clock page queue_lifetime budget reply memory
-- @keys   meta log detached requeued states failures
-- @args   now after limit id
-- @reply  now retention entries details looked last cut: details are, for each entry, state, until (ms or empty) and
-- @reply  the value of `failures`; then the number of the messages looked at, the sequence of the last one, and 1 if
-- @reply  some may be missing
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
local looked, last = #entries, entries[#entries] and entries[#entries][1] or ''
if arg.id ~= '' then entries = lazy(page).with_id(entries, arg.id) end
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
return reply.ok(q, now, retention or '', entries, details, looked, last, q.cut and 1 or 0)
