--- What is due in a queue, done in bounded steps: by whoever comes by, and by the reaper on time.
--
-- @use restore delays expiry length agenda stale budget
local sweep = {}
local BUDGET = 250
local STUCK = 1000

--- Messages whose lease has ended come back.
function sweep.reclaim(q, now)
  local ids = redis.call('ZRANGEBYSCORE', q.leases, '-inf', now * 1000 + 999, 'LIMIT', 0, BUDGET)
  return restore.back(q, now, q.leases, ids, {counted = 1, description = '', ran_out = true})
end

--- Messages whose delay has ended are ready again.
function sweep.promote(q, now, most)
  local ids = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', now, 'LIMIT', 0, most)
  return restore.back(q, now, q.delayed, ids, {counted = 0})
end

--- Everything that is due, at most `BUDGET` messages of each kind. `more` says that some is left.
-- What is overdue goes first, then what a limit drops: so a limit acts on living messages only, and what comes back
-- finds all the room that there is.
function sweep.run(q, now)
  local done = {reclaimed = 0, promoted = 0, trimmed = 0}
  if delays.are_uncapped(q) then
    rare(delays).cap(q, BUDGET)
    done.uncapped = q.retention_scan ~= 'done'
  end
  local dead, pushed, over = expiry.overdue(q, now, BUDGET), 0, nil
  done.expired, over = #dead.all > 0 and rare(expiry).bury(q, now, dead) or 0, dead.full
  if not over then done.trimmed, over = length.trim(q, now, BUDGET) end
  if not over then
    done.reclaimed, pushed = sweep.reclaim(q, now)
    done.trimmed = done.trimmed + pushed
    done.promoted, pushed = sweep.promote(q, now, math.max(1, BUDGET - done.reclaimed))
    done.trimmed = done.trimmed + pushed
  end
  sweep.finish(q, now, done, over)
  return done
end

--- When the queue is due again, and whether at once. Where nothing could be done, though something is due, that is not at
-- once: what is damaged keeps nobody busy.
function sweep.finish(q, now, done, over)
  local some = stale.forget(q) + done.expired + done.trimmed + done.reclaimed + done.promoted > 0
  budget.forget(q)
  q.due_at = agenda.next(q)
  over = over or done.uncapped or q.due_at ~= nil and q.due_at <= now
  some = some or done.uncapped
  done.more = over and some
  if over then q.due_at = some and now or now + STUCK end
end

--- Sweep if anything can be due. Returns whether more is, and whether it did.
function sweep.if_due(q, now)
  if q.due_at and q.due_at <= now then
    return rare(sweep).run(q, now).more, true
  end
  return false, false
end
