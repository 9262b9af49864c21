--- Store messages, at most a few hundred: all that fit the queue's limits, in order, under rising ids.
--
-- What must make room for them is decided first and removed last: while Redis has no memory left, the first write of
-- an enqueue has to be one that Redis refuses. The keys behind the bar are needed only where a limit, a TTL of 0 or a
-- window for duplicates can act; the caller knows. `form` is `bodies` for a batch of nothing but bodies, `ids` for one
-- in which each message has an id and nothing else is said of it, and else empty; what is said stands before the body.
-- `window` is empty, or for how many ms this call wants ids to be remembered, and those to be known that others like it
-- have stored.
--
-- @use     clock record queue_lifetime fast_path batch store admission append limits dedup wakeup reply
-- @keys    meta log expiry wakeup waiters | detached leases requeued delayed failures dedup dedup_ids dedup_windows
-- @targets expired maxlen
-- @args    version targets now window form batch...
-- @reply   ids: for each message `<id>` or `<id> <own deadline>`, with `~` before it if it was dead on arrival, `!<the limit that refused it>`, or `=` for a duplicate
-- @refuse  not_found stale queue_expired retry malformed: followed by the place of the message in the batch, from 1 on

local now = clock.now(arg.now)
local refusal, record = record.open(q, arg.version, now, 'enqueued')
if refusal then
  return lazy(reply).refuse(refusal)
end
if arg.window ~= '' then q.remember = tonumber(arg.window) end
local step, plan = arg.form == 'bodies' and 1 or 2, nil
local items = arg.form ~= '' and fast_path.no_default_ttl(q) and fast_path.measure(q, now, arg.batch, step)
  or lazy(batch).read(q, now, step == 1 and lazy(fast_path).with_empty_headers(arg.batch) or arg.batch)
if items.malformed then
  return lazy(reply).refuse('malformed', items.malformed)
elseif q.retry then
  return lazy(reply).refuse('retry')
end
if items.count < items.n or (q.max_length or q.max_length_bytes) and limits.would_exceed(q, items.count, items.size) then
  lazy(record).open_rest(q)
  if items.step then items = lazy(batch).read(q, now, step == 1 and lazy(fast_path).with_empty_headers(arg.batch) or arg.batch) end
  plan = lazy(admission).decide(q, now, items)
  if not plan then
    return lazy(reply).refuse('retry')
  end
end

local results = items.step and append.all(q, now, items.words, step, items.n) or lazy(store).all(q, now, items)
local repeated = (items.names or items.new) and lazy(dedup).note(q, now, items) or 0
local enqueued = record[7] + items.n - repeated
if plan then
  lazy(admission).finish(q, now, items, plan, enqueued)
else
  q.ready_bytes = q.ready_bytes + items.size
  if q.message_ttl then record.schedule_sweep(q, now + q.message_ttl) end
  wakeup.ring(q, now)
  if q.life then lazy(queue_lifetime).mark_active(q, now) end
  record.save_arrivals(q, string.format('%d', enqueued))
end
return reply.ok(q, results)
