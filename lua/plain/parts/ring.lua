--- Ring once if a consumer waits. The queue is due 5 s after a ring, and reapers learn of an earlier due time.
-- @names now

if redis.call('ZCARD', key.waiters) == 0 then
  redis.call('HSET', key.meta, 'has_waiters', '0')
elseif redis.call('LLEN', key.wakeup) == 0 then
  redis.call('RPUSH', key.wakeup, '')
  local due, again = tonumber(redis.call('HGET', key.meta, 'due_at')), now + 5000
  if not due or again < due then
    again = string.format('%d', again)
    redis.call('HSET', key.meta, 'due_at', again)
    local namespace, tag, suffix = string.match(key.meta, '^([^:]+):{([^}]*)}(.*):meta$')
    if suffix ~= '' and string.byte(suffix) ~= 47 then tag = '{' .. tag .. '}' end
    redis.call('PUBLISH', namespace .. ':due', again .. ' ' .. tag .. suffix)
  end
end
