--- Settle one run of deliveries whose lease holds. The queue has no lifetime.

repeat
  local token, done = rest[1], rest.size - 2
  if tonumber(rest[2]) ~= done then break end
  local options, now = redis.call('HGET', key.meta, 'option_set'), tonumber(arg.now)
  if not options or options == 'expiring' then break end
  if not now then
    now = redis.call('TIME')
    now = now[1] * 1000 + math.floor(now[2] / 1000)
  end
  if now * 1000 + 1000 > (tonumber(token) or 0) then break end
  local held = true
  if done == 1 then
    held = redis.call('ZMSCORE', key.leases, rest[3])[1] == token
  else
    local score = string.format('%.17g', token)
    local seqs = redis.call('ZRANGEBYSCORE', key.leases, score, score, 'LIMIT', 0, done)
    for i = 1, done do held = held and seqs[i] == rest[i + 2] end
  end
  if not held then break end

  if redis.call('XDEL', key.log, rest.from(3)) < done then redis.call('HDEL', key.detached, rest.from(3)) end
  redis.call('ZREM', key.leases, rest.from(3))
  if redis.call('EXISTS', key.failures) == 1 then redis.call('HDEL', key.failures, rest.from(3)) end
  redis.call('HINCRBY', key.meta, 'acked', done)
  local none = {}
  do return {'ok', '', none, none} end
until true
