--- The lifetime of a queue: not used for `expires` ms, or idle for `auto_delete_on_idle` ms, it is over.
-- `used` is until when the queue was in use (a consumer that waits is using it already), `active` the same for idleness.
--
-- @use announce
local lapse = {}

--- Read the lifetime of a queue that has one. Returns whether it is over at `now`.
function lapse.read(q, now)
  local m = redis.call('HMGET', q.meta, 'expires', 'auto_delete_on_idle', 'used', 'active', 'on_expire',
    'emptied')
  q.life = {expires = tonumber(m[1]), idle = tonumber(m[2]), used = tonumber(m[3]), active = tonumber(m[4]),
    on_expire = m[5], emptied = m[6] or '0-0'}
  return now and lapse.ends(q) <= now
end

function lapse.ends(q)
  local life = q.life
  local unused, idle = life.expires and life.used + life.expires, life.idle and life.active + life.idle
  return unused and idle and math.min(unused, idle) or unused or idle
end

--- Whether the queue of this record is over, for commands that know no more than the record.
function lapse.is_over(q, now)
  return redis.call('HGET', q.meta, 'plain') == 'mortal' and lapse.read(q, now)
end

--- The queue is in use until `at`.
function lapse.use(q, at)
  local life = q.life
  life.changed, life.used, life.active = true, at, at
end

--- A receive: the queue is in use now, and as long as its consumers stay.
function lapse.attend(q, now)
  local last = redis.call('ZRANGE', q.consumers, -1, -1, 'WITHSCORES')[2]
  lapse.use(q, math.max(now, tonumber(last) or now))
end

--- Whether a queue with `keep` lives on at the end of its lifetime: it holds messages (`there`), or some may have been in
-- it since its last end. `emptied` is the last sequence of a queue that an end found empty.
function lapse.keeps(q, there)
  local life = q.life
  if life.on_expire ~= 'keep' or there == 0 and q.last == life.emptied then
    return false
  end
  if there == 0 then life.emptied = q.last end
  return true
end

--- Messages came in, or somebody looked: no use, but not idle.
function lapse.stir(q, now)
  local life = q.life
  if life.idle and now > life.active then
    life.changed, life.active = true, now
  end
end

--- Write what has changed.
function lapse.save(q)
  if q.life.changed then
    redis.call('HSET', q.meta, 'used', string.format('%d', q.life.used), 'active', string.format('%d', q.life.active))
    if q.life.emptied ~= '0-0' then redis.call('HSET', q.meta, 'emptied', q.life.emptied) end
  end
end

--- A new life begins: the queue was made, declared again, changed or touched. Reapers hear when it would end.
function lapse.renew(q, now)
  if redis.call('HGET', q.meta, 'plain') ~= 'mortal' then return end
  redis.call('HSET', q.meta, 'used', string.format('%d', now), 'active', string.format('%d', now))
  lapse.read(q)
  local ends, due = lapse.ends(q), tonumber(redis.call('HGET', q.meta, 'due'))
  if not due or ends < due then
    redis.call('HSET', q.meta, 'due', string.format('%d', ends))
    announce.due(q.meta, ends)
  end
end
