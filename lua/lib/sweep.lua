--- What is due in a queue, done in bounded steps: by whoever comes by, and by the reaper on time.
--
-- @use returns delays expiry length ready queue lapse
local sweep = {}
local BUDGET = 250

--- Messages whose lease has ended come back.
function sweep.reclaim(q, now, most)
  local ids = redis.call('ZRANGEBYSCORE', q.leases, '-inf', now * 1000 + 999, 'LIMIT', 0, most)
  returns.back(q, now, q.leases, ids, {counted = 1, description = '', ran_out = true})
  return #ids
end

--- Messages whose delay has ended are ready again.
function sweep.promote(q, now, most)
  local ids = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', now, 'LIMIT', 0, most)
  returns.back(q, now, q.delayed, ids, {counted = 0})
  return #ids
end

--- Everything that is due, at most `BUDGET` messages. `more` says that some is left.
function sweep.run(q, now)
  local done = {trimmed = 0}
  done.reclaimed = sweep.reclaim(q, now, queue.readable(q, BUDGET))
  local uncapped = delays.are_uncapped(q)
  if uncapped then rare(delays).cap(q, BUDGET) end
  done.promoted = sweep.promote(q, now, queue.readable(q, math.max(1, BUDGET - done.reclaimed)))
  local left = math.max(1, BUDGET - done.reclaimed - done.promoted)
  local kept, own, full = expiry.overdue(q, now, left)
  done.expired = expiry.bury(q, now, kept, own)
  local over = full
  if not full then
    -- a limit acts on living messages: not before the last overdue one has gone
    done.trimmed, over = length.trim(q, now, math.max(1, left - done.expired))
  end
  q.due = sweep.next_due(q)
  done.more = over or uncapped and q.capping ~= 'done' or q.due ~= nil and q.due <= now
  if done.more then q.due = now end
  return done
end

--- Sweep if anything can be due. Returns whether more is, and whether it did.
function sweep.if_due(q, now)
  if q.due and q.due <= now then
    return rare(sweep).run(q, now).more, true
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
    local oldest = ready.read(q, 1)[1]
    consider(oldest and tonumber(string.sub(oldest[1], 1, 13)) + q.message_ttl)
  end
  if q.life then consider(rare(lapse).ends(q)) end
  return earliest
end

--- For how long the oldest of what is due has been waiting, in ms; 0 if nothing is, or if only a limit has to act.
function sweep.overdue(q, now)
  local since = q.due and q.due <= now and rare(sweep).next_due(q) or now
  return math.max(0, now - since)
end
