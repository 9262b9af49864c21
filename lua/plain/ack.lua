--- Settle one run of deliveries whose lease holds. The queue has no lifetime and no `max_leased`.

repeat
  local token, done = rest[1], rest.size - 2
  if tonumber(rest[2]) ~= done then break end
  local options, now = redis.call('HGET', key.meta, 'option_set'), tonumber(arg.now)
  if options ~= 'default' and options ~= 'custom' then break end
  -- @part now
  local held
  -- @part held
  if not held then break end

  -- @part finish
  redis.call('HINCRBY', key.meta, 'acked', done == 1 and '1' or done)
  do return {'ok', '', '', ''} end
until true
