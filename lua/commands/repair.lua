--- Repair damage in a queue: these messages, the cursor and the last sequence. `bytes` is written if the record is
-- still the text `record` of an audit.
--
-- Each message is checked again, so a right one stays as it is. The queue is due at once: a sweep computes when it is
-- due next.
--
-- @use    reaper_hint integrity reply memory
-- @keys   meta log detached expiry requeued states failures
-- @args   record bytes seqs...
-- @reply  done: the repaired damage, words and numbers in turn
-- @refuse not_found

local version, cursor, last_id = unpack(redis.call('HMGET', q.meta, 'version', 'cursor', 'last_id'))
if not version then
  return reply.refuse('not_found')
end
local plan, counts, done = integrity.plan(), {}, {}
local recount = arg.bytes ~= '' and integrity.fingerprint(q) == arg.record
q.cursor, q.last_id = integrity.bounds(q, cursor, last_id)
for _, seq in ipairs(arg.seqs) do
  local wrong = integrity.check(q, seq, plan)
  if wrong and wrong ~= 'header' then counts[wrong] = (counts[wrong] or 0) + 1 end
end
counts.cursor, counts.last = q.cursor ~= cursor and 1 or nil, q.last_id ~= last_id and 1 or nil
counts.bytes = recount and 1 or nil

memory.may_pass(q)
integrity.repair(q, plan)
redis.call('HSET', q.meta, 'cursor', q.cursor, 'last_id', q.last_id)
if recount then redis.call('HSET', q.meta, 'ready_bytes', arg.bytes) end
reaper_hint.due_now(q.meta)
for word, n in pairs(counts) do
  done[#done + 1], done[#done + 2] = word, n
end
return reply.ok(q, done)
