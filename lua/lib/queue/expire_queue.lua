--- The end of a queue's lifetime: the queue is deleted, and `on_expire` says whether its messages are dead-lettered
-- first.
--
-- @use tombstone ready log stale dead_letter queue_lifetime reply reaper_hint schedule outbox
local expire_queue = {}
local BUDGET = 250

--- Do a bounded part. Returns nil if the queue lives on: because of `keep`, of a message that is not due yet, or of
-- those of a redrive that may come back. Otherwise it returns the number of dead messages, and, once the queue is
-- deleted, the number of messages that were dropped with it.
function expire_queue.run(q, now)
  local life, last = q.life, redis.call('ZRANGE', q.scheduled, -1, -1, 'WITHSCORES')[2]
  if last then -- a receive has set the activity back, or the lifetime is younger than the message
    queue_lifetime.mark_active(q, tonumber(last))
    if queue_lifetime.expires_at(q) > now then return end
  end
  local present = redis.call('XLEN', q.log) + redis.call('HLEN', q.detached) + redis.call('ZCARD', q.scheduled)
  if lazy(outbox).redriving(q) > 0 or queue_lifetime.keeps(q, present) then
    queue_lifetime.mark_used(q, now)
    return
  end
  local dead = 0
  if life.on_expire == 'dead-letter' and present > 0 then
    dead = expire_queue.bury_some(q, now, BUDGET)
    present = present - dead
    -- a message that no set names cannot be found, so it is dropped
    if present > 0 and stale.forget(q) + dead > 0 then return dead end
  end
  tombstone.delete_queue(q, now)
  reply.note(q, 'deleted', reaper_hint.queue_name(q.meta))
  return dead, present
end

--- Bury up to `most` messages: the ready ones first, then those of the other states, and scheduled ones last.
function expire_queue.bury_some(q, now, most)
  local entries, failed = ready.read(q, most), 0
  if #entries > 0 then
    ready.remove_unhandled(q, entries, true)
  else
    local seqs = {}
    for state in each('states') do
      if #seqs == 0 then
        seqs = redis.call('ZRANGE', q[state.part], 0, most - 1)
        entries, failed = expire_queue.take_away(q, q[state.part], seqs), state.promoted and 0 or 1
      end
    end
  end
  if #entries == 0 then entries, failed = lazy(schedule).take_first(q, now, most), 0 end
  dead_letter.bury(q, now, 'expired', entries, failed)
  return #entries
end

--- Remove messages that are in the set of a state.
function expire_queue.take_away(q, source, seqs)
  local entries = stale.read(q, source, seqs)
  local present = log.seqs(entries)
  if #present == 0 then return entries end
  ready.record_loss(q, entries)
  log.remove(q, present)
  redis.call('ZREM', source, unpack(present))
  return entries
end
