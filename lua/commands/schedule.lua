--- Schedule messages, at most a few hundred: each is stored now, and arrives in the queue when it is due.
--
-- The batch has for each message its due time (`+<ms>` from now, or `@<ms>`), its envelope and its body. `window` is as
-- for `enqueue`. Limits act on arrival; duplicates are looked for now.
--
-- @use    clock record schedule dedup reply
-- @keys   meta scheduled upcoming scheduled_ids scheduled_more wakeup waiters dedup dedup_ids dedup_windows
-- @args   version now window batch...
-- @reply  results: for each message `<first sequence> <due>` or `<first sequence> <due> <own deadline>`, or `=` for a
-- @reply  duplicate
-- @refuse not_found stale queue_expired retry malformed: followed by the place of the message in the batch, from 1 on

local now = clock.now(arg.now)
local refusal, enqueued = record.open(q, arg.version, now, 'enqueued')
if refusal then
  return reply.refuse(refusal)
end
if arg.window ~= '' then q.remember = tonumber(arg.window) end
local items = schedule.read(now, arg.batch)
if items.malformed then
  return reply.refuse('malformed', items.malformed)
end
local named = items.dedup_name and (q.window or q.remember)
if named then lazy(dedup).mark_duplicates(q, now, items) end
if q.retry then
  return reply.again(q)
end
local results = schedule.put(q, now, items)
if named then lazy(dedup).note(q, now, items) end
record.save_arrivals(q, enqueued)
return reply.ok(q, results)
