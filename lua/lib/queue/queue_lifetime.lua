--- The lifetime of a queue: it ends after `expires` ms without use, or after `auto_delete_on_idle` ms without activity.
--
-- `last_used_at` is the end of the last use, and `last_active_at` the end of the last activity. A waiting consumer uses
-- the queue until the end of its wait, so both may lie in the future.
--
-- @use reaper_hint
local queue_lifetime = {}

--- Read the lifetime of a queue that has one. Returns whether it has ended at `now`.
function queue_lifetime.read(q, now)
  local expires, idle, last_used_at, last_active_at, on_expire, emptied_last_id = unpack(redis.call('HMGET', q.meta,
    'expires', 'auto_delete_on_idle', 'last_used_at', 'last_active_at', 'on_expire', 'emptied_last_id'))
  q.life = {expires = tonumber(expires), idle = tonumber(idle), last_used_at = tonumber(last_used_at),
    last_active_at = tonumber(last_active_at), on_expire = on_expire, emptied_last_id = emptied_last_id or '0-0'}
  return now and queue_lifetime.expires_at(q) <= now
end

--- The instant at which the lifetime ends.
function queue_lifetime.expires_at(q)
  local life = q.life
  local unused, idle = life.expires and life.last_used_at + life.expires, life.idle and life.last_active_at + life.idle
  return unused and idle and math.min(unused, idle) or unused or idle
end

--- Return whether the lifetime of the queue has ended, for commands that read nothing else of the record.
function queue_lifetime.is_over(q, now)
  return redis.call('HGET', q.meta, 'option_set') == 'expiring' and queue_lifetime.read(q, now)
end

--- Record use of the queue until `at`. Use is activity, too.
function queue_lifetime.mark_used(q, at)
  local life = q.life
  life.changed, life.last_used_at, life.last_active_at = true, at, at
end

--- Record a receive: the queue is in use now, and as long as its consumers stay.
function queue_lifetime.mark_received(q, now)
  local last = redis.call('ZRANGE', q.consumers, -1, -1, 'WITHSCORES')[2]
  queue_lifetime.mark_used(q, math.max(now, tonumber(last) or now))
end

--- Return whether a queue with `keep` survives the end of its lifetime. It survives if it holds messages, or if some
-- may have come and gone since the last end. `emptied_last_id` is the last sequence at an end that found no message.
function queue_lifetime.keeps(q, messages)
  local life = q.life
  if life.on_expire ~= 'keep' or messages == 0 and q.last_id == life.emptied_last_id then
    return false
  end
  if messages == 0 then life.emptied_last_id = q.last_id end
  return true
end

--- Restart the idle timer; the use timer is not affected.
function queue_lifetime.mark_active(q, now)
  local life = q.life
  if life.idle and now > life.last_active_at then
    life.changed, life.last_active_at = true, now
  end
end

--- Write the changed fields.
function queue_lifetime.save(q)
  if q.life.changed then
    redis.call('HSET', q.meta, 'last_used_at', string.format('%d', q.life.last_used_at), 'last_active_at',
      string.format('%d', q.life.last_active_at))
    if q.life.emptied_last_id ~= '0-0' then redis.call('HSET', q.meta, 'emptied_last_id', q.life.emptied_last_id) end
  end
end

--- Restart the lifetime: the queue was created, declared again, changed or touched. Reapers learn its new end.
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
