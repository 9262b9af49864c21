--- What is due in a queue, done in bounded steps: by whoever comes by, and by the reaper on time.
--- When a queue is due.
--
-- @use restore delays expiry limits stale budget ready queue_lifetime
local sweep = {}
local BUDGET = 250
local STUCK = 1000

--- Messages whose lease has ended come back.
function sweep.reclaim(q, now)
  local ids = redis.call('ZRANGEBYSCORE', q.leases, '-inf', now * 1000 + 999, 'LIMIT', 0, BUDGET)
  return restore.run(q, now, q.leases, ids, {counted = 1, description = '', ran_out = true})
end

--- Messages whose delay has ended are ready again.
function sweep.promote(q, now, most)
  local ids = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', now, 'LIMIT', 0, most)
  return restore.run(q, now, q.delayed, ids, {counted = 0})
end

--- Everything that is due, at most `BUDGET` messages of each kind. `more` says that some is left.
-- What is overdue goes first, then what a limit drops: so a limit acts on living messages only, and what comes back
-- finds all the room that there is.
function sweep.run(q, now)
  local done = {reclaimed = 0, promoted = 0, trimmed = 0}
  if delays.are_uncapped(q) then
    lazy(delays).cap(q, BUDGET)
    done.uncapped = q.retention_scan ~= 'done'
  end
  local dead, pushed, over = expiry.overdue(q, now, BUDGET), 0, nil
  done.expired, over = #dead.all > 0 and lazy(expiry).bury(q, now, dead) or 0, dead.full
  if not over then done.trimmed, over = limits.trim(q, now, BUDGET) end
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
  budget.forget_large(q)
  q.due_at = sweep.next_due(q)
  over = over or done.uncapped or q.due_at ~= nil and q.due_at <= now
  some = some or done.uncapped
  done.more = over and some
  if over then q.due_at = some and now or now + STUCK end
end

--- Sweep if anything can be due. Returns whether more is, and whether it did.
function sweep.if_due(q, now)
  if q.due_at and q.due_at <= now then
    return lazy(sweep).run(q, now).more, true
  end
  return false, false
end

--- When something is due next: the earliest of all leases, delays, own deadlines, the oldest message's retention, and
-- the end of the queue's lifetime.
function sweep.next_due(q)
  local earliest
  local function consider(at)
    if at and (not earliest or at < earliest) then earliest = at end
  end
  local first = redis.call('ZRANGE', q.leases, 0, 0, 'WITHSCORES')[2]
  consider(first and math.floor(first / 1000))
  consider(tonumber(redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')[2]))
  consider(tonumber(redis.call('ZRANGE', q.expiry, 0, 0, 'WITHSCORES')[2]))
  if q.message_ttl then
    local oldest = ready.oldest(q)
    consider(oldest and oldest + q.message_ttl)
  end
  if q.life then consider(lazy(queue_lifetime).expires_at(q)) end
  return earliest
end

--- For how long the oldest of what is due has been waiting, in ms; 0 if nothing is, or if only a limit has to act.
function sweep.overdue(q, now)
  local since = q.due_at and q.due_at <= now and lazy(sweep).next_due(q) or now
  return math.max(0, now - since)
end
