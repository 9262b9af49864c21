--- Store messages, at most a few hundred: all that fit the queue's limits, in order, under rising ids.
--
-- What must make room for them is decided first and removed last: while Redis has no memory left, the first write of
-- an enqueue has to be one that Redis refuses. The keys behind the bar are needed only where a limit, a TTL of 0 or a
-- window for duplicates can act; the caller knows. `form` is `bodies` for a batch of nothing but bodies, `ids` for one
-- in which each message has an id and nothing else is said of it, and else empty; what is said stands before the body.
-- `window` is empty, or for how many ms this call wants ids to be remembered, and those to be known that others like it
-- have stored.
--
-- @use     clock queue lapse record plain arrival mixed admit append length handover seen intake wake reply target
-- @keys    meta log expiry wakeup waiters | detached leases requeued delayed failures dedup dedup_ids dedup_windows
-- @targets expired maxlen
-- @args    version targets now window form batch...
-- @reply   ids: for each message `<id>` or `<id> <own deadline>`, with `~` before it if it was dead on arrival, `!<the limit that refused it>`, or `=` for a duplicate
-- @refuse  not_found stale queue_expired retry malformed: followed by the place of the message in the batch, from 1 on

local now = clock.now(arg.now)
local refusal, record = queue.open(q, arg.version, now, 'enqueued')
if refusal then
  return rare(reply).refuse(refusal)
end
if arg.window ~= '' then q.remember = tonumber(arg.window) end
local step, plan = arg.form == 'bodies' and 1 or 2, nil
local items = arg.form ~= '' and plain.is_calm(q) and plain.weigh(q, now, arg.batch, step)
  or rare(arrival).read(q, now, step == 1 and rare(plain).spread(arg.batch) or arg.batch)
if items.malformed then
  return rare(reply).refuse('malformed', items.malformed)
elseif q.retry then
  return rare(reply).refuse('retry')
end
if items.count < items.n or (q.max_length or q.max_length_bytes) and length.pressed(q, items.count, items.size) then
  rare(queue).open_rest(q)
  if items.step then items = rare(arrival).read(q, now, step == 1 and rare(plain).spread(arg.batch) or arg.batch) end
  plan = rare(admit).decide(q, now, items)
  if not plan then
    return rare(reply).refuse('retry')
  end
end

local results = items.step and append.all(q, now, items.words, step, items.n) or rare(mixed).store(q, now, items)
local repeated = (items.names or items.new) and rare(seen).note(q, now, items) or 0
local enqueued = record[7] + items.n - repeated
if plan then
  rare(intake).finish(q, now, items, plan, enqueued)
else
  q.ready_bytes = q.ready_bytes + items.size
  if q.message_ttl then queue.due_by(q, now + q.message_ttl) end
  wake.ring(q, now)
  if q.life then rare(lapse).stir(q, now) end
  record.save_arrivals(q, string.format('%d', enqueued))
end
return reply.ok(q, results)
