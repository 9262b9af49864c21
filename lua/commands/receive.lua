--- Finish deliveries, then take messages out: under a lease, or for good with `auto`.
--
-- `count` may be 0: then messages that were handed to the consumer go back, uncounted. A consumer that gives its name
-- and gets fewer messages than `room` is recorded as waiting for `block` ms in the same step, so no message can arrive
-- unnoticed in between. It counts as a consumer for `stay` ms. `ticket` is the value that the consumer got from the
-- list `wakeup`.
--
-- @use     clock record queue_lifetime lease sweep limits handoff restore take failures wakeup control log reply
-- @keys    meta log detached expiry requeued states failures wakeup waiters consumers
-- @targets expired maxlen delivery_limit
-- @args    version targets now replay count lease auto room consumer block stay ticket finished...
-- @reply   now due more token lost messages failures unknown: messages are `<sequence> <header> <body>` in turn, and
-- @reply   failures `<sequence> <failed deliveries>`; for `unknown` see `ack`
-- @refuse  not_found stale queue_expired

local now, most, waits = clock.now(arg.now), tonumber(arg.count), arg.consumer ~= ''
local refusal = record.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local held, lost, unknown = {}, {}, {}
if #arg.finished > 0 then
  held, lost, unknown = lease.held(q, now, arg.finished, arg.replay)
end
if #held > 0 then
  lease.finish(q, held)
  record.count(q, 'acked', #held)
end

local more, swept = sweep.if_due(q, now)
-- the next messages go with the next sweep: the caller comes again
if more and (q.drops_head or q.letters_came) and limits.would_exceed(q, 0, 0) then most = 0 end
local state = {taken = {}, seqs = {}, with_header = {}, expired = {}, size = 0}
local leaves = arg.count == '0'
if most > 0 or leaves then
  if arg.ticket ~= '' then lazy(handoff).accept(q, now, arg.ticket, state, leaves) end
  -- take it before ready messages: no other consumer may come for it
  if waits and arg.block == '0' and q.has_waiters ~= '0' and redis.call('EXISTS', q.wakeup) == 1 then
    lazy(handoff).claim(q, now, most, arg.consumer, state)
  end
  if state.unwanted then
    redis.call('ZREM', q.waiters, unpack(state.unwanted))
    lazy(restore).run(q, now, q.leases, state.unwanted, {counted = 0, description = '', wholly = true})
  end
end
if most > 0 then
  if q.controlled then most = #state.seqs + lazy(control).room(q, now, most - #state.seqs) end
  take.choose(q, now, most, state)
end
local seqs, failed = state.seqs, {}
if state.requeued or state.handed then
  failed = lazy(failures).list(q, seqs)
  if #failed > 0 then record.count(q, 'redelivered', #failed / 2) end
end

take.apply(q, now, state, more)
local token, ends = '', now + arg.lease
if #seqs > 0 then
  if arg.auto ~= '' then
    lazy(lease).finish(q, seqs)
    record.count(q, 'acked', #seqs)
  else
    token, q.lease_grants = lease.token(ends, q.lease_grants), q.lease_grants + 1
    lease.grant(q, token, seqs)
    record.schedule_sweep(q, ends)
  end
  q.delivered = q.delivered + #seqs
end
local block = waits and #seqs < tonumber(arg.room) and tonumber(arg.block) or 0
local passes = q.hint
if waits then
  passes = wakeup.track_consumer(q, now, arg.consumer, block, tonumber(arg.stay), state.handed or {}) or passes
end
if q.life then lazy(queue_lifetime).mark_received(q, now) end
local due = q.due_at
if q.controlled then due = lazy(control).look(q, now, #seqs - #(state.handed or {}), arg.consumer, block) end
-- a consumer that leaves its wait may have taken a wake-up; an ack may have made a place
if not state.emptied and (most > 0 or swept or arg.block == '0' or q.controlled) then
  more = more or #seqs < most
  wakeup.ring_if_ready(q, now)
end
if passes and q.due_at and q.has_waiters ~= '0' then lazy(wakeup).pass_watch(q, now) end
record.save(q)
return reply.ok(q, now, due or '', more and 1 or 0, token, reply.list(lost), log.flat(state.taken),
  reply.list(failed), reply.list(unknown))
