--- Remove what is left of a queue that is not there: keys without their record. A queue that is there stays, and so
-- does the trace of one that was deleted.
--
-- @use    record reply
-- @keys   meta log detached expiry leases requeued delayed failures wakeup waiters consumers dedup dedup_ids dedup_windows
-- @args
-- @reply  cleared: 0 if the queue is there

if redis.call('HEXISTS', q.meta, 'version') == 1 then
  return reply.ok(q, 0)
end
record.unlink(q)
return reply.ok(q, 1)
