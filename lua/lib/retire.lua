--- The end of a queue's lifetime: its messages are dropped or dead-lettered, as `on_expire` says, and it is deleted.
--
-- @use queue gone ready log dead_letter lapse reply announce
local retire = {}
local BUDGET = 250

--- Do a bounded part of it. Returns nothing if the queue lives on after all, because of `keep`; else
-- how many messages died, and, once nothing is left of the queue, how many were dropped with it.
function retire.run(q, now)
  local life, there = q.life, redis.call('XLEN', q.log) + redis.call('HLEN', q.loose)
  if lapse.keeps(q, there) then
    lapse.use(q, now)
    return
  end
  local dead = 0
  if life.on_expire == 'dead-letter' and there > 0 then
    dead = retire.bury(q, now, queue.readable(q, BUDGET))
    if dead < there then return dead end
    there = 0
  end
  gone.delete(q)
  reply.note(q, 'gone', announce.name(q.meta))
  return dead, there
end

--- Bury some messages, whatever their state: the ready ones first, in order.
function retire.bury(q, now, most)
  local entries, failed = ready.read(q, most), 0
  if #entries > 0 then
    ready.lose(q, entries, true)
  else
    local ids = redis.call('ZRANGE', q.leases, 0, most - 1)
    failed = #ids > 0 and 1 or 0
    if #ids == 0 then ids = redis.call('ZRANGE', q.delayed, 0, most - 1) end
    entries = log.read(q, ids)
    ready.miss(q, entries)
    log.remove(q, ids)
    redis.call('ZREM', failed == 1 and q.leases or q.delayed, unpack(ids))
  end
  dead_letter.bury(q, now, 'expired', entries, failed)
  return #entries
end
