--- Sweeps: the due work of a queue, in bounded steps. Commands on the queue sweep it, and the reaper does so on time.
--
-- @use restore delays expiry limits stale budget ready queue_lifetime reply reaper_hint control outbox
local sweep = {}
local BUDGET = 250
local STUCK = 1000

--- Reclaim messages whose lease has ended. Returns what `restore.run` returns.
function sweep.reclaim(q, now)
  local seqs = redis.call('ZRANGEBYSCORE', q.leases, '-inf', now * 1000 + 999, 'LIMIT', 0, BUDGET)
  return restore.run(q, now, q.leases, seqs, {counted = 1, description = '', ran_out = true})
end

--- Promote messages whose state has ended, as those whose delay is over. Returns what `restore.run` returns.
function sweep.promote(q, now, most)
  local promoted, dropped, expired = 0, 0, 0
  for state in each('promoted') do
    local seqs = redis.call('ZRANGEBYSCORE', q[state.part], '-inf', now, 'LIMIT', 0, math.max(1, most - promoted))
    local moved, pushed, dead = restore.run(q, now, q[state.part], seqs, {counted = 0, promoted = true})
    promoted, dropped, expired = promoted + moved, dropped + pushed, expired + dead
  end
  return promoted, dropped, expired
end

--- Do everything that is due, at most `BUDGET` messages of each kind. `more` says that some is left. Overdue messages
-- die first and limits act second: so a limit drops only live messages, and messages that come back find all the room.
-- Nobody could refuse dead letters: after them the oldest go, whatever `overflow` says.
function sweep.run(q, now)
  local done, drops_head = {reclaimed = 0, promoted = 0, trimmed = 0}, q.drops_head
  q.drops_head = drops_head or redis.call('HEXISTS', q.meta, 'letters_came') == 1
  if delays.are_uncapped(q) then
    lazy(delays).cap(q, BUDGET)
    done.uncapped = q.retention_scan ~= 'done'
  end
  local dead = expiry.overdue(q, now, BUDGET)
  local over = dead.full
  done.expired = #dead.all > 0 and lazy(expiry).bury(q, now, dead) or 0
  if not over then done.trimmed, over = limits.trim(q, now, BUDGET) end
  if not over then
    local reclaimed, pushed, overdue = sweep.reclaim(q, now)
    local promoted, dropped, late = sweep.promote(q, now, BUDGET - reclaimed)
    done.reclaimed, done.promoted = reclaimed - overdue, promoted - late
    done.trimmed, done.expired = done.trimmed + pushed + dropped, done.expired + overdue + late
  end
  sweep.finish(q, now, done, over)
  q.drops_head = drops_head
  return done
end

--- Decide when the queue is due again. If something is due but nothing could be done, it is not due at once: a damaged
-- queue must not keep reapers busy.
function sweep.finish(q, now, done, over)
  local progress = stale.forget(q) + done.expired + done.trimmed + done.reclaimed + done.promoted > 0
  budget.forget_large(q)
  q.due_at = sweep.next_due(q, now)
  over = over or done.uncapped or q.due_at ~= nil and q.due_at <= now
  progress = progress or done.uncapped
  done.more = over and progress
  if over then q.due_at = progress and now or now + STUCK end
  if q.letters_came and not over then redis.call('HDEL', q.meta, 'letters_came') end
  if q.passes_on and ready.count(q) > 0 then
    reply.note(q, 'pass', reaper_hint.queue_name(q.meta))
    q.due_at = math.min(q.due_at or math.huge, now + STUCK)
  end
  local outgoing_at = q.outgoing_at
  if outgoing_at then
    local is_noted
    outgoing_at, is_noted = lazy(outbox).remind(q, now, outgoing_at)
    done.more = done.more or is_noted
    if not q.due_at or outgoing_at < q.due_at then q.due_at = outgoing_at end
  end
  local arrival_at = q.arrival_at
  if arrival_at and arrival_at <= now then
    if q.activates then return end -- the next arrival follows from this one
    -- only the command `sweep` lets messages arrive: the caller runs it, and looks again
    reply.note(q, 'sweep', reaper_hint.queue_name(q.meta))
    done.more, arrival_at = true, now + STUCK
  end
  if arrival_at and (not q.due_at or arrival_at < q.due_at) then q.due_at = arrival_at end
end

--- Sweep the queue if something may be due. Returns whether more is due, and whether it swept.
function sweep.if_due(q, now)
  if q.due_at and q.due_at <= now then
    return lazy(sweep).run(q, now).more, true
  end
  return false, false
end

--- The next instant at which something is due: the earliest of the ends of states, own deadlines, retention of the
-- oldest message, and the end of the lifetime of the queue. Arrivals are apart, in `q.arrival_at`, and so are dead
-- letters on their way, in `q.outgoing_at`.
function sweep.next_due(q, now)
  local earliest
  local function consider(at)
    if at and (not earliest or at < earliest) then earliest = at end
  end
  for state in each('states') do
    local first = redis.call('ZRANGE', q[state.part], 0, 0, 'WITHSCORES')[2]
    consider(first and math.floor(first / state.per_ms))
  end
  consider(tonumber(redis.call('ZRANGE', q.expiry, 0, 0, 'WITHSCORES')[2]))
  if q.message_ttl then
    local oldest = ready.oldest(q)
    consider(oldest and oldest + q.message_ttl)
  end
  if q.life then consider(lazy(queue_lifetime).expires_at(q)) end
  if q.rate then consider(lazy(control).recheck(q, now)) end
  local arrival_at, outgoing_at, held, came = unpack(redis.call('HMGET', q.meta, 'arrival_at', 'outgoing_at',
    'held_back', 'letters_came'))
  q.arrival_at, q.outgoing_at, q.letters_came = tonumber(arrival_at), tonumber(outgoing_at), came
  -- it was held back before a step back of the clock
  if held == '1' and q.arrival_at and q.arrival_at > now + STUCK then q.arrival_at = now end
  return earliest
end

--- The ms for which the oldest due work has waited; 0 if nothing is due, or if only a limit has to act.
function sweep.overdue(q, now)
  local since = q.due_at and q.due_at <= now and lazy(sweep).next_due(q, now) or now
  return math.max(0, now - math.min(since or now, q.arrival_at or now))
end
