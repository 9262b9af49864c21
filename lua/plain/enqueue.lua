--- Store one body. The queue has default options, and nobody waits.

repeat
  local body = rest[1]
  if arg.form ~= 'bodies' or arg.window ~= '' or rest.size ~= 1 or #body > 16384 then break end
  local m = redis.call('HMGET', key.meta, 'version', 'option_set', 'has_waiters', 'last_id', 'ready_bytes', 'enqueued')
  if m[1] ~= arg.version or m[2] ~= 'default' or m[3] ~= '0' then break end
  local now, seq = tonumber(arg.now), m[4]
  -- @part now
  local prefix = string.format('%013d-', now)
  if prefix > seq then
    seq = prefix .. '100000'
  else
    local serial = string.sub(seq, 15) + 1
    if serial > 999999 then break end
    seq = string.sub(seq, 1, 14) .. serial
  end

  redis.call('XADD', key.log, seq, '', body)
  redis.call('HSET', key.meta, 'last_id', seq, 'ready_bytes', string.format('%d', m[5] + #body),
    'enqueued', string.format('%d', m[6] + 1))
  do return {'ok', '', {seq}} end
until true
