--- Store messages, at most a few hundred: all that fit the queue's limits, in order, under rising ids.
--
-- What must make room for them is decided first and removed last: while Redis has no memory left, the first write of
-- an enqueue has to be one that Redis refuses. The keys behind the bar are needed only where a limit or a TTL of 0 can
-- act; the caller knows.
--
-- @use     clock queue arrival admit log length handover wake reply target
-- @keys    meta log expiry bell waiting | loose leases returned delayed redelivered
-- @targets expired maxlen
-- @args    version targets now batch...
-- @reply   ids: for each message `<id>`, `<id> <own deadline>`, or `!<the limit that refused it>`
-- @refuse  not_found stale again

local refusal, record = queue.open(q, arg.version, 'enqueued')
if refusal then
  return rare(reply).refuse(refusal)
end
local now = clock.now(arg.now)
local items = arrival.read(q, now, arg.batch)
local plan
if items.count < items.n or (q.max_length or q.max_length_bytes) and rare(length).pressed(q, items.count, items.size) then
  rare(queue).open_rest(q)
  plan = rare(admit).decide(q, now, items)
  if plan.again then
    rare(admit).carry_out(q, now, plan)
    queue.save(q)
    return rare(reply).refuse('again')
  end
end

local deadlines, results, body = {}, {}, items.body
items.id = {}
for i = 2, 2 * items.n, 2 do
  local fate, own, header, id = items.fate[i], items.own[i], items.header[i] or '', nil
  if not fate then
    id = log.append(q, now, header, body[i])
    if own then
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = own, id
      queue.due_by(q, own)
    end
  elseif fate == 'handed' then
    id = rare(handover).give(q, now, header, body[i])
  else
    id = log.next_id(q, now)
    items.id[i] = id
  end
  results[i / 2] = items.limit[i] and '!' .. items.limit[i] or own and id .. string.format(' %d', own) or id
end
if #deadlines > 0 then
  redis.call('ZADD', q.expiry, unpack(deadlines))
end
if items.count > 0 then
  q.bytes = q.bytes + items.size
  if q.message_ttl then queue.due_by(q, now + q.message_ttl) end
end
local refused = plan and rare(admit).finish(q, now, plan, items) or 0
if items.count > 0 then wake.ring(q) end
q.was.enqueued, q.enqueued = 0, tonumber(record[7]) + items.n - refused
queue.save(q)
return reply.ok(q, results)
