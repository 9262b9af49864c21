--- Remove the ready messages that a reader of the log has handled: those after `after`, up to `upto`.
--
-- At most a few hundred go in one call. It is a decision about messages that were read, like an ack, so it is no loss.
-- Messages in another state stay. Nothing is dead-lettered. A queue with another `created_at` is another queue.
--
-- @use    record ready stale reply purge states arrivals
-- @keys   meta log detached arrivals expiry requeued states failures
-- @args   created_at after upto
-- @reply  purged more away: the number of messages in another state
-- @refuse not_found

local version, born = unpack(redis.call('HMGET', q.meta, 'version', 'created_at'))
local refusal = record.open_all(q, version or '')
if refusal or born ~= arg.created_at then
  return reply.refuse('not_found')
end
local entries, all = ready.between(q, arg.after, arg.upto, 250)
local purged = purge.take(q, entries, arg.after <= q.cursor)
stale.forget(q)
if purged > 0 then
  record.count(q, 'purged', purged)
  arrivals.trim(q.arrivals, q.log)
end
record.save(q)
return reply.ok(q, purged, all and 0 or 1, states.count_away(q))
