--- Finish the messages of the only run.
-- @names done

if redis.call('XDEL', key.log, rest.from(3)) < done then redis.call('HDEL', key.detached, rest.from(3)) end
redis.call('ZREM', key.leases, rest.from(3))
if redis.call('EXISTS', key.failures) == 1 then redis.call('HDEL', key.failures, rest.from(3)) end
