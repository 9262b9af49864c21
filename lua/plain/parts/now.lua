--- The time of the call: that of Redis, unless the call gives one.
-- @names now

if not now then
  now = redis.call('TIME')
  now = now[1] * 1000 + (now[2] - now[2] % 1000) / 1000
end
