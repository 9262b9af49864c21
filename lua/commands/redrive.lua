--- Redrive dead letters: ready ones of `seqs` in the source move to the end of this queue, in one step.
--
-- They arrive like messages without a TTL, at most a few hundred. The TTLs and limits of this queue act on them,
-- those without room stay in the source, and duplicates are not looked for. Message id, body, headers and deaths stay
-- the same.
--
-- @use     clock record admission store reply redrive memory
-- @keys    meta log expiry wakeup waiters detached requeued states failures
-- @targets expired maxlen
-- @source  expiry requeued states failures
-- @args    version targets now replay seqs...
-- @reply   results: for each of the first `seqs`, `<new sequence>` or `<new sequence> <own deadline>`, with `~` before
-- @reply   it if it was dead on arrival, `!<the limit that refused it>`, `-` if it is not there or not ready, or `=` if
-- @reply   an earlier try moved it
-- @refuse  not_found stale queue_expired retry

local now = clock.now(arg.now)
local refusal, enqueued_before = record.open(q, arg.version, now, 'enqueued')
if refusal then
  return reply.refuse(refusal)
end
record.open_rest(q)
q.dead_letter_refused = false
local letters, last, missing = redrive.find(q.source, now, arg.seqs)
local results = {}
if #letters > 0 then
  local items = redrive.read(q, q.source, now, letters)
  local plan = admission.decide(q, now, items)
  if not plan then
    return reply.again(q)
  end
  memory.must_ask(q)
  results = store.all(q, now, items)
  redrive.leave(q.source, letters, items)
  admission.finish(q, now, items, plan, enqueued_before + items.n)
end
return reply.ok(q, redrive.results(arg.seqs, last, letters, results, missing, arg.replay))
