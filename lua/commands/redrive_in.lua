--- Let a page of dead letters from a queue in another slot arrive, once: as `redrive` does, with what `accept` knows.
--
-- @use     clock record admission store reply redrive memory outbox
-- @keys    meta log expiry wakeup waiters detached requeued states failures redriver
-- @targets expired maxlen
-- @args    version targets now source number token letters...
-- @reply   results: for each one `.`, or `n` or `b` if `max_length` or `max_length_bytes` leaves no room, or `-` if
-- @reply   there is no queue and the call names no version
-- @refuse  not_found stale queue_expired retry behind: followed by the number of the last page, if that of this page is
-- @refuse  not above it

local known, last = outbox.recall(q.redriver, arg.number, arg.token)
if known then
  return reply.ok(q, known)
elseif last then
  return reply.refuse('behind', last)
end
local now = clock.now(arg.now)
local refusal, enqueued_before = record.open(q, arg.version, now, 'enqueued')
if refusal == 'not_found' and arg.version == '' then
  local none = string.rep('-', #arg.letters / 3)
  outbox.remember(q.redriver, arg.number, arg.token, none)
  return reply.ok(q, none)
elseif refusal then
  return reply.refuse(refusal)
end
record.open_rest(q)
q.dead_letter_refused = false
local items = redrive.read(q, {name = arg.source}, now, redrive.page(arg.letters))
local plan = admission.decide(q, now, items)
if not plan then
  return reply.again(q)
end
memory.must_ask(q)
store.all(q, now, items)
local results = redrive.outcomes(items)
outbox.remember(q.redriver, arg.number, arg.token, results)
admission.finish(q, now, items, plan, enqueued_before + items.n)
return reply.ok(q, results)
