--- Put right what is damaged in a queue: these ids, the cursor and the last sequence; and `bytes`, if the record is
-- still `record` as an audit gave it.
--
-- Everything is looked at anew, so what is right by now stays as it is. Whatever follows is due at once: a sweep finds
-- out what, and when.
--
-- @use    reaper_hint integrity reply
-- @keys   meta log detached expiry leases requeued delayed failures
-- @args   record bytes ids...
-- @reply  done: what was put right, words and numbers in turn
-- @refuse not_found

local found = redis.call('HMGET', q.meta, 'version', 'cursor', 'last_id')
if not found[1] then
  return reply.refuse('not_found')
end
local plan, counts, done = integrity.plan(), {}, {}
local recount = arg.bytes ~= '' and integrity.fingerprint(q) == arg.record
q.cursor, q.last_id = integrity.bounds(q, found[2], found[3])
for _, id in ipairs(arg.ids) do
  local wrong = integrity.check(q, id, plan)
  if wrong and wrong ~= 'header' then counts[wrong] = (counts[wrong] or 0) + 1 end
end
counts.cursor, counts.last = q.cursor ~= found[2] and 1 or nil, q.last_id ~= found[3] and 1 or nil
counts.bytes = recount and 1 or nil

redis.call('HDEL', q.meta, '') -- the first write is one that frees, so that what follows passes when memory is full
integrity.repair(q, plan)
redis.call('HSET', q.meta, 'cursor', q.cursor, 'last_id', q.last_id)
if recount then redis.call('HSET', q.meta, 'ready_bytes', arg.bytes) end
reaper_hint.due_now(q.meta)
for word, n in pairs(counts) do
  done[#done + 1], done[#done + 2] = word, n
end
return reply.ok(q, done)
