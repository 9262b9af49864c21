--- Store one message, and ring once if a consumer waits. The queue has default options. The message has no id and no
-- TTL.

repeat
  local header, body = arg.form, rest[1]
  if header == 'bodies' then
    header = ''
  elseif string.sub(header, 1, 3) ~= ';;;' then
    break
  end
  if rest.size ~= 1 or arg.window ~= '' or #header + #body > 16384 then break end
  local m = redis.call('HMGET', key.meta, 'version', 'option_set', 'has_waiters', 'last_id', 'ready_bytes', 'enqueued')
  if m[1] ~= arg.version or m[2] ~= 'default' then break end
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

  redis.call('XADD', key.log, seq, header, body)
  redis.call('HSET', key.meta, 'last_id', seq, 'ready_bytes', string.format('%d', m[5] + #body),
    'enqueued', string.format('%d', m[6] + 1))
  if m[3] == '1' then
    -- @part ring
  end
  do return {'ok', '', {seq}} end
until true
