--- The lifetime of a queue: not used for `expires` ms, or idle for `auto_delete_on_idle` ms, it is over.
-- `last_used_at` says until when the queue was in use; a consumer that waits uses it for as long as it says. The field
-- `last_active_at` says the same of activity.
--
-- @use reaper_hint
local queue_lifetime = {}

--- Read the lifetime of a queue that has one. Returns whether it is over at `now`.
function queue_lifetime.read(q, now)
  local m = redis.call('HMGET', q.meta, 'expires', 'auto_delete_on_idle', 'last_used_at', 'last_active_at', 'on_expire',
    'emptied_last_id')
  q.life = {expires = tonumber(m[1]), idle = tonumber(m[2]), last_used_at = tonumber(m[3]),
    last_active_at = tonumber(m[4]), on_expire = m[5], emptied_last_id = m[6] or '0-0'}
  return now and queue_lifetime.expires_at(q) <= now
end

function queue_lifetime.expires_at(q)
  local life = q.life
  local unused, idle = life.expires and life.last_used_at + life.expires, life.idle and life.last_active_at + life.idle
  return unused and idle and math.min(unused, idle) or unused or idle
end

--- Whether the queue of this record is over, for commands that know no more than the record.
function queue_lifetime.is_over(q, now)
  return redis.call('HGET', q.meta, 'option_set') == 'expiring' and queue_lifetime.read(q, now)
end

--- The queue is in use until `at`.
function queue_lifetime.mark_used(q, at)
  local life = q.life
  life.changed, life.last_used_at, life.last_active_at = true, at, at
end

--- A receive: the queue is in use now, and as long as its consumers stay.
function queue_lifetime.mark_received(q, now)
  local last = redis.call('ZRANGE', q.consumers, -1, -1, 'WITHSCORES')[2]
  queue_lifetime.mark_used(q, math.max(now, tonumber(last) or now))
end

--- Whether a queue with `keep` lives on at the end of its lifetime: it holds messages (`there`), or some may have been in
-- it since its last end. `emptied_last_id` is the last sequence of a queue that an end found empty.
function queue_lifetime.keeps(q, there)
  local life = q.life
  if life.on_expire ~= 'keep' or there == 0 and q.last_id == life.emptied_last_id then
    return false
  end
  if there == 0 then life.emptied_last_id = q.last_id end
  return true
end

--- Messages came in, or somebody looked: no use, but not idle.
function queue_lifetime.mark_active(q, now)
  local life = q.life
  if life.idle and now > life.last_active_at then
    life.changed, life.last_active_at = true, now
  end
end

--- Write what has changed.
function queue_lifetime.save(q)
  if q.life.changed then
    redis.call('HSET', q.meta, 'last_used_at', string.format('%d', q.life.last_used_at), 'last_active_at',
      string.format('%d', q.life.last_active_at))
    if q.life.emptied_last_id ~= '0-0' then redis.call('HSET', q.meta, 'emptied_last_id', q.life.emptied_last_id) end
  end
end

--- A new life begins: the queue was made, declared again, changed or touched. Reapers hear when it would end.
function queue_lifetime.restart(q, now)
  if redis.call('HGET', q.meta, 'option_set') ~= 'expiring' then return end
  redis.call('HSET', q.meta, 'last_used_at', string.format('%d', now), 'last_active_at', string.format('%d', now))
  queue_lifetime.read(q)
  local ends, due = queue_lifetime.expires_at(q), tonumber(redis.call('HGET', q.meta, 'due_at'))
  if not due or ends < due then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', ends))
    reaper_hint.send(q.meta, ends)
  end
end
