--- Remove the keys of a queue without a record. An existing queue stays, and so does the tombstone of a deleted one.
--
-- @use    record reply
-- @keys   * -tombstone
-- @args
-- @reply  cleared: 0 if the queue is there

if redis.call('HEXISTS', q.meta, 'version') == 1 then
  return reply.ok(q, 0)
end
record.unlink(q)
return reply.ok(q, 1)
