--- Store a copy of each message in every queue of the call that gets it, or nothing anywhere.
--
-- `words` are five for each of `count` queues, then envelope and body of each message; with the `form` `log` sequences,
-- the first ready ones, of messages that wait at the topic. The five are name, version, the number of keys, targets,
-- and the numbers of the messages that the queue gets (empty: all). A queue that others of the call bury into comes
-- before these. A message for more queues than one call has comes alone, with queues in the order of their names:
-- `known` is the field `fan_at` of the record, as the caller knows it, and `mark` its new value, empty with the last
-- queues.
--
-- @use     clock record queue_lifetime copies ready reply
-- @keys    meta log detached requeued expiry states failures dedup dedup_ids dedup_windows
-- @copies  enqueue
-- @args    version now window form count known mark words...
-- @reply   results: for each message `<sequence>` or `<sequence> <own deadline>` by the topic, or `=` for a duplicate;
-- @reply   none with the form `log`
-- @refuse  not_found queue_expired retry stale full behind malformed: stale is followed by the queues that have other
-- @refuse  options or are gone (none: the topic itself), full by queue, limit and place of the message, malformed by
-- @refuse  the place, behind with the form `log` by `fan_at`, or empty

local now = clock.now(arg.now)
local refusal, enqueued, made, unrouted = record.open(q, arg.version, now, 'enqueued', 'copies', 'unrouted')
if refusal then
  return reply.refuse(refusal)
end
local stale, waits = copies.open(q.copies, now), arg.form == 'log'
if #stale > 0 then
  return reply.refuse('stale', unpack(stale))
elseif not waits and redis.call('XLEN', q.log) + redis.call('HLEN', q.detached) > 0 and lazy(ready).count(q) > 0 then
  return reply.refuse('behind')
end
if arg.window ~= '' then q.remember = tonumber(arg.window) end
local items, mark
if waits then
  items, mark = lazy(copies).of_entries(q, now, arg.words, arg.count, arg.known)
else
  items = copies.of_batch(q, now, arg.words, arg.count)
end
if not items then
  return reply.refuse('behind', mark)
elseif items.malformed then
  return reply.refuse('malformed', items.malformed)
elseif q.retry then
  return reply.again(q)
end
local planned, retry = copies.plan(q.copies, now, items)
local name, limit, number
if planned then name, limit, number = lazy(copies).refusing(q.copies) end
if name then
  return reply.refuse('full', name, limit, number)
elseif retry then
  lazy(copies).make_room(q.copies, now)
  return reply.again(q)
end

if waits then
  lazy(copies).leave(q, items, arg.known, arg.mark)
else
  if q.life then lazy(queue_lifetime).mark_active(q, now) end
  copies.save_source(q, now, q.copies, items, enqueued, made, unrouted)
end
for _, into in ipairs(q.copies) do
  copies.store(into, now)
end
q.notes = #q.notes > 0 and q.notes or nil
return reply.ok(q, reply.list(items.results))
