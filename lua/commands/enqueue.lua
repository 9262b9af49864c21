--- Store messages, at most a few hundred: all that fit the queue's limits, in order, under rising ids.
--
-- What must make room for them is decided first and removed last: while Redis has no memory left, the first write of
-- an enqueue has to be one that Redis refuses.
--
-- @use     clock queue arrival admit log lease length dead_letter wake reply
-- @keys    meta log loose expiry leases returned delayed redelivered bell waiting
-- @targets expired maxlen
-- @args    version targets now batch...
-- @reply   ids: for each message `<id>`, `<id> <own deadline>`, or `!<the limit that refused it>`
-- @refuse  not_found stale again

local refusal, rules = queue.open(q, arg.version, 'default_ttl', 'min_ttl', 'max_ttl', 'never_expire')
if refusal then
  return reply.refuse(refusal)
end
local now = clock.now(arg.now)
local items = arrival.read(q, {default = tonumber(rules[1]), min = tonumber(rules[2]), max = tonumber(rules[3]),
  never = rules[4]}, now, arg.batch)
local plan = admit.decide(q, now, items)
if plan.again then
  admit.carry_out(q, now, plan)
  queue.save(q)
  return reply.refuse('again')
end

local results, expired, refused, deadlines, stored = {}, {}, {}, {}, 0
for i, item in ipairs(items) do
  local fate, id = item.fate
  if fate == 'stored' then
    id, stored, q.bytes = log.append(q, now, item.header, item.body), stored + 1, q.bytes + #item.body
    if item.deadline then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = item.deadline, id
      queue.due_by(q, item.deadline)
    end
  elseif fate == 'handed' then
    id = arrival.hand(q, now, item)
  else
    id = log.next_id(q, now)
    local gone = fate == 'dead' and expired or refused
    gone[#gone + 1] = {id, {item.header, item.body}}
  end
  results[i] = item.limit and '!' .. item.limit
    or item.deadline and id .. ' ' .. string.format('%.0f', item.deadline) or id
end
if #deadlines > 0 then
  redis.call('ZADD', q.expiry, unpack(deadlines))
end
dead_letter.bury(q, now, 'expired', expired)
if q.dead_letters_new and q.targets.maxlen then
  dead_letter.bury(q, now, 'maxlen', refused)
end
admit.carry_out(q, now, plan)
length.trim(q, now, #items)
if stored > 0 then
  if q.message_ttl then queue.due_by(q, now + q.message_ttl) end
  wake.ring(q)
end
queue.count(q, 'enqueued', #items - #refused)
if #refused > 0 then queue.count(q, 'refused', #refused) end
queue.save(q)
return reply.ok(q, results)
