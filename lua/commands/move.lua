--- Move single messages of the source to this queue, at most a few hundred, all or none of them in one step.
--
-- Ready and delayed ones arrive like messages that were sent with their deadlines; scheduled ones keep their due times.
-- Ids, bodies, headers and deaths stay the same. Duplicates are not looked for. If one of them is leased, or has no
-- room, none moves. With `dry` none moves either.
--
-- @use     clock record admission store reply redrive memory intervene schedule
-- @keys    meta log expiry wakeup waiters detached requeued states failures scheduled upcoming scheduled_ids
-- @keys    scheduled_more
-- @targets expired maxlen
-- @source  expiry requeued states failures scheduled upcoming scheduled_ids scheduled_more
-- @args    version targets now dry seqs...
-- @reply   done looked leased ends limit: as for `intervene`; the limit that leaves no room, or empty
-- @refuse  not_found stale queue_expired retry

local now, from = clock.now(arg.now), q.source
local refusal, enqueued_before = record.open(q, arg.version, now, 'enqueued')
if refusal then
  return reply.refuse(refusal)
end
record.open_rest(q)
q.dead_letter_refused = false
local version = redis.call('HGET', from.meta, 'version')
if record.open_all(from, version or '') then
  return reply.ok(q, 0, #arg.seqs, '', '', '')
end
local found = intervene.find(from, now, arg.seqs, arg.dry ~= '')
if found.leased then
  return reply.ok(q, 0, found.looked, found.leased, found.ends, '')
end
local letters, waiting = intervene.arrived(found), found.waiting
local items = redrive.read(q, from, now, letters, true)
local plan = #letters > 0 and admission.plan(q, now, items)
local limit = plan and admission.limit(items)
if limit or arg.dry ~= '' or found.n == 0 then
  return reply.ok(q, limit and 0 or found.n, found.looked, '', '', limit or '')
elseif plan and not admission.make_way(q, now, plan) then
  return reply.again(q)
end
memory.must_ask(q)
if plan then store.all(q, now, items) end
intervene.remove(from, found)
if #waiting.seqs > 0 then
  schedule.take(from, waiting.seqs, waiting.texts)
  schedule.put(q, now, schedule.batch(waiting.seqs, waiting.at, waiting.texts))
end
record.count(from, 'redriven', found.n)
record.save(from)
if plan then
  admission.finish(q, now, items, plan, enqueued_before + items.n)
else
  record.save(q)
end
return reply.ok(q, found.n, found.looked, '', '', '')
