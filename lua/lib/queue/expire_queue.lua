--- The end of a queue's lifetime: its messages are dropped or dead-lettered, as `on_expire` says, and it is deleted.
--
-- @use tombstone ready log stale dead_letter queue_lifetime reply reaper_hint
local expire_queue = {}
local BUDGET = 250

--- Do a bounded part of it. Returns nothing if the queue lives on after all, because of `keep`; else
-- how many messages died, and, once nothing is left of the queue, how many were dropped with it.
function expire_queue.run(q, now)
  local life, there = q.life, redis.call('XLEN', q.log) + redis.call('HLEN', q.detached)
  if queue_lifetime.keeps(q, there) then
    queue_lifetime.mark_used(q, now)
    return
  end
  local dead = 0
  if life.on_expire == 'dead-letter' and there > 0 then
    dead = expire_queue.bury_some(q, now, BUDGET)
    there = there - dead
    -- nobody can find what stands in no place: that is dropped
    if there > 0 and stale.forget(q) + dead > 0 then return dead end
  end
  tombstone.delete_queue(q)
  reply.note(q, 'deleted', reaper_hint.queue_name(q.meta))
  return dead, there
end

--- Bury some messages, whatever their state: the ready ones first, in order.
function expire_queue.bury_some(q, now, most)
  local entries, failed = ready.read(q, most), 0
  if #entries > 0 then
    ready.remove_unhandled(q, entries, true)
  else
    local ids = redis.call('ZRANGE', q.leases, 0, most - 1)
    failed = #ids > 0 and 1 or 0
    if #ids == 0 then ids = redis.call('ZRANGE', q.delayed, 0, most - 1) end
    entries = expire_queue.take_away(q, failed == 1 and q.leases or q.delayed, ids)
  end
  dead_letter.bury(q, now, 'expired', entries, failed)
  return #entries
end

--- Take messages out of the queue that are leased or delayed.
function expire_queue.take_away(q, source, ids)
  local entries, gone = stale.read(q, source, ids), {''}
  for i, entry in ipairs(entries) do
    gone[i] = entry[1]
  end
  ready.record_loss(q, entries)
  log.remove(q, gone)
  redis.call('ZREM', source, unpack(gone))
  return entries
end
