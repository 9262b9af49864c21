--- Store messages, at most a few hundred: all that fit the limits of the queue, in order, under rising sequences.
--
-- The messages that make room are chosen first and removed last: without free memory, Redis must refuse the first write
-- of an enqueue. The keys behind the bar are needed only where a limit, a TTL of 0 or a window for duplicates can act;
-- the client knows. With an empty `form` each body has an envelope before it, and with `ids` each envelope is only an
-- id. With `bodies` the batch has bodies alone. Any other `form` is the envelope of all messages, and the batch has
-- their bodies. `window` is empty, or a window for duplicates of this call in ms.
--
-- @use     clock record queue_lifetime fast_path batch store admission append limits dedup wakeup reply
-- @keys    meta log expiry wakeup waiters | detached requeued states failures dedup dedup_ids dedup_windows
-- @targets expired maxlen
-- @args    version targets now window form batch...
-- @reply   results: for each message `<sequence>` or `<sequence> <own deadline>`, with `~` before it if it was dead on
-- @reply   arrival, `!<the limit that refused it>`, or `=` for a duplicate
-- @refuse  not_found stale queue_expired retry malformed: followed by the place of the message in the batch, from 1 on

local now = clock.now(arg.now)
local refusal, enqueued_before = record.open(q, arg.version, now, 'enqueued')
if refusal then
  return lazy(reply).refuse(refusal)
end
if arg.window ~= '' then q.remember = tonumber(arg.window) end
local common, step, plan = arg.form, 1, nil
if common == 'bodies' then
  common = ''
elseif common == '' or common == 'ids' then
  step = 2
end
local items = arg.form ~= '' and fast_path.no_default_ttl(q) and fast_path.measure(q, now, arg.batch, step, common)
  or lazy(batch).read(q, now, arg.batch, step, common)
if items.malformed then
  return lazy(reply).refuse('malformed', items.malformed)
elseif q.retry then
  return lazy(reply).again(q)
end
local limited = q.max_length or q.max_length_bytes
if items.count < items.n or limited and lazy(limits).would_exceed(q, items.count, items.size) then
  lazy(record).open_rest(q)
  if items.step then items = lazy(batch).read(q, now, arg.batch, step, common) end
  plan = lazy(admission).decide(q, now, items)
  if not plan then
    return lazy(reply).again(q)
  end
end

local results = items.step and append.all(q, now, items.words, step, items.n, common) or lazy(store).all(q, now, items)
local repeated = (items.dedup_names or items.new_names) and lazy(dedup).note(q, now, items) or 0
local enqueued = enqueued_before + items.n - repeated
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
