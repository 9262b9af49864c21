--- Whether the lease of the only run holds, and its deliveries are the next ones of their token.
-- @names now token done held

held = now * 1000 + 1000 <= (tonumber(token) or 0)
if held and done == 1 then
  held = redis.call('ZMSCORE', key.leases, rest[3])[1] == token
elseif held then
  local score = string.format('%.17g', token)
  local seqs = redis.call('ZRANGEBYSCORE', key.leases, score, score, 'LIMIT', '0', rest[2])
  for i = 1, done do held = held and seqs[i] == rest[i + 2] end
end
