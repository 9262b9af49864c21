--- Settle one run of deliveries at most, then take messages ahead of the cursor. The caller may begin to wait. The
-- queue has default options, nothing is due, no lease ends earlier than all others, and no message came back. No taken
-- message has expired, and no ready message is left for consumers that wait.

repeat
  local count, done, token = tonumber(arg.count), rest.size - 2, rest[1]
  if count < 1 or count > 250 or arg.auto ~= '' or arg.ticket ~= '' then break end
  if token and tonumber(rest[2]) ~= done then break end
  local m = redis.call('HMGET', key.meta, 'version', 'option_set', 'due_at', 'has_waiters', 'large_upto', 'cursor',
    'ready_bytes', 'lease_grants', 'delivered', 'acked')
  local due, cursor, now, others = tonumber(m[3]), m[6], tonumber(arg.now), m[4] == '1'
  if m[1] ~= arg.version or m[2] ~= 'default' or m[5] and m[5] > cursor then break end
  if others and arg.consumer ~= '' and arg.block == '0' then break end
  -- @part now
  local ends, block = now + arg.lease, arg.consumer ~= '' and tonumber(arg.block) or 0
  if block < 1 and (not due or due > ends) then break end
  if due and due <= now or redis.call('EXISTS', key.requeued) == 1 then break end

  if token then
    local held
    -- @part held
    if not held then break end
  end

  local page = redis.call('XRANGE', key.log, '(' .. cursor, '+', 'COUNT', arg.count)
  local taken, size, words, members, expiring, expired = #page, 0, {nil, nil, nil}, {nil, nil}, nil, false
  if block ~= 0 and taken >= tonumber(arg.room) then block = 0 end
  if block < 0 or taken > 0 and (not due or due > ends) then break end
  local last_id = (others or block > 0) and taken == count and redis.call('HGET', key.meta, 'last_id')
  if last_id and last_id ~= page[taken][1] then break end
  local lease = string.format('%d', ends * 1000 + m[8] % 1000)
  for i = 1, taken do
    local entry = page[i]
    local seq, parts = entry[1], entry[2]
    local header, body = parts[1], parts[2]
    if header ~= '' then
      local deadline = tonumber(header) or tonumber((string.match(header, '^(%d*);')))
      expired = expired or deadline and now >= deadline
      expiring = expiring or {}
      expiring[#expiring + 1] = seq
    end
    size, words[3 * i - 2], words[3 * i - 1], words[3 * i] = size + #body, seq, header, body
    members[2 * i - 1], members[2 * i] = lease, seq
  end
  if expired then break end

  if token then
    -- @part finish
  end
  if expiring then
    redis.call('ZREM', key.expiry, unpack(expiring))
  elseif not token then
    redis.call('ZREM', key.expiry, '')
  end
  if taken > 16 then
    local long = string.rep('-', 100)
    redis.call('ZADD', key.leases, lease, long, unpack(members))
    redis.call('ZREM', key.leases, long)
  elseif taken > 0 then
    redis.call('ZADD', key.leases, unpack(members))
  end
  if arg.consumer ~= '' then
    local stay = tonumber(arg.stay)
    if block > 0 then
      redis.call('ZADD', key.waiters, (due and math.min(now + block, due) or now + block) + 5000, arg.consumer)
      if not others then redis.call('HSET', key.meta, 'has_waiters', '1') end
      stay = math.max(block + 5000, stay)
    elseif others and redis.call('ZREM', key.waiters, arg.consumer) == 1 and due then
      -- it may have been the one that looks when the queue is due
      local late = string.format('%d', due + 5000)
      if redis.call('ZCOUNT', key.waiters, '(' .. late, '+inf') > 0
        and redis.call('ZCOUNT', key.waiters, string.format('(%d', now), late) == 0
        and redis.call('LLEN', key.wakeup) == 0 then
        redis.call('RPUSH', key.wakeup, '')
      end
    end
    if stay > 0 then
      redis.call('ZADD', key.consumers, now + stay, arg.consumer)
    else
      redis.call('ZREM', key.consumers, arg.consumer)
    end
  end
  if taken > 0 then
    local last, bytes = page[taken][1], string.format('%d', m[7] - size)
    local grants, delivered = string.format('%d', m[8] + 1), string.format('%d', m[9] + taken)
    if token then
      redis.call('HSET', key.meta, 'cursor', last, 'ready_bytes', bytes, 'lease_grants', grants, 'delivered', delivered,
        'acked', string.format('%d', (m[10] or 0) + done))
    else
      redis.call('HSET', key.meta, 'cursor', last, 'ready_bytes', bytes, 'lease_grants', grants, 'delivered', delivered)
    end
  elseif token then
    redis.call('HSET', key.meta, 'acked', string.format('%d', (m[10] or 0) + done))
  end
  do return {'ok', '', now, due or '', 0, taken > 0 and lease or '', '', words, '', ''} end
until true
