--- Put dead letters back: those of `ids` that are ready in the source go to the end of this queue, in one step.
--
-- They arrive like messages that are sent without a TTL, at most a few hundred: this queue's TTLs and limits act, what
-- finds no room stays where it is, and duplicates are not looked for. Id, body, headers and deaths are kept.
--
-- @use     clock record admission store reply redrive
-- @keys    meta log expiry wakeup waiters detached leases requeued delayed failures
-- @targets expired maxlen
-- @source  expiry leases requeued delayed failures
-- @args    version targets now replay ids...
-- @reply   results: for each of the first `ids`, `<new id>` or `<new id> <own deadline>`, with `~` before it if it was dead on arrival, `!<the limit that refused it>`, `-` if it is not there or not ready, or `=` if it has gone back before
-- @refuse  not_found stale queue_expired retry

local now = clock.now(arg.now)
local refusal, record = record.open(q, arg.version, now, 'enqueued')
if refusal then
  return reply.refuse(refusal)
end
record.open_rest(q)
q.dead_letters_new = false
local letters, last, missing = redrive.find(q.source, now, arg.ids)
local results = {}
if #letters > 0 then
  local items = redrive.read(q, q.source, now, letters)
  local plan = admission.decide(q, now, items)
  if not plan then
    return reply.refuse('retry')
  end
  redis.call('HSET', q.meta, 'last_id', q.last_id) -- the first write is one that Redis refuses when memory is full
  results = store.all(q, now, items)
  redrive.leave(q.source, letters, items)
  admission.finish(q, now, items, plan, record[7] + items.n)
end
return reply.ok(q, redrive.results(arg.ids, last, letters, results, missing, arg.replay))
