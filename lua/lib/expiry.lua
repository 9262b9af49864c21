--- Taking out messages whose time is over, from anywhere in the queue, in the order of their deadlines in force.
-- Own deadlines are in the sorted set `expiry`; retention needs no index, because ids are times. A delayed message is
-- due at its deadline at the latest.
--
-- Ready messages die in that order across steps. Delayed ones die among them, but for two cases: alone they die in the order
-- in which they are due, sorted in each step; and one behind more living ones than a step reads comes later. A leased one
-- dies when it comes back, in order among those that come back in the same step.
--
-- @use lifetime ready log stale dead_letter queue overdue
local expiry = {}

--- Up to `most` messages whose time is over, the earliest deadlines. Nothing is written. Of `all`, `kept` head the queue,
-- `own` are ready anywhere, `away` are delayed. `full` says that more may be over.
function expiry.overdue(q, now, most)
  local due = redis.call('ZRANGEBYSCORE', q.expiry, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local back = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  if q.message_ttl or #back > 0 then
    return rare(overdue).merge(q, now, most, due, back)
  end
  local ids = {}
  for i = 1, #due, 2 do
    ids[#ids + 1] = due[i]
  end
  local own, looked = stale.read(q, q.expiry, ids)
  return {all = own, own = own, kept = {}, away = {}, full = looked < #ids or #ids == most}
end

--- Bury what `overdue` found. Returns how many.
function expiry.bury(q, now, dead)
  if #dead.all == 0 then return 0 end
  ready.lose(q, dead.kept, true)
  ready.lose(q, dead.own, false)
  if #dead.away > 0 then
    local ids = {}
    for i, entry in ipairs(dead.away) do
      ids[i] = entry[1]
    end
    ready.miss(q, dead.away)
    log.remove(q, ids)
    redis.call('ZREM', q.delayed, unpack(ids))
  end
  rare(dead_letter).bury(q, now, 'expired', dead.all)
  return #dead.all
end

--- Bury what is overdue, so that it takes no room. Returns whether more is.
function expiry.make_room(q, now, most)
  local dead = expiry.overdue(q, now, most)
  expiry.bury(q, now, dead)
  return dead.full
end

--- Ready messages whose time is over were in the way of others. They die; or, where others are to die before them
-- (`more`), they wait for that in `delayed`, due at their deadlines.
function expiry.meet(q, now, entries, more)
  if more then return expiry.set_aside(q, now, entries) end
  lifetime.sort(q, entries)
  expiry.bury(q, now, {all = entries, own = entries, kept = {}, away = {}})
end

function expiry.set_aside(q, now, entries)
  local ids, members, size = {}, {}, 0
  for i, entry in ipairs(entries) do
    ids[i], size = entry[1], size + #entry[2][2]
    members[2 * i - 1], members[2 * i] = lifetime.deadline(q, entry[1], entry[2][1]), entry[1]
  end
  redis.call('ZREM', q.expiry, unpack(ids))
  redis.call('ZREM', q.requeued, unpack(ids))
  redis.call('ZADD', q.delayed, unpack(members))
  q.ready_bytes = q.ready_bytes - size
  queue.due_by(q, now)
end
