--- Check a page of messages for damage, and compute the right values of the record. Nothing is changed.
--
-- `source` is the part whose sequences are checked. `after` is empty, or the `next` of the page before. `due`, `cursor`
-- and `last` are right values (`due`: at the latest); `record` is the whole record as text.
--
-- @use    record sweep integrity reply log
-- @keys   meta log detached expiry requeued states failures
-- @args   source after limit
-- @reply  next record due cursor last seen ready bytes faults: faults are sequences and words in turn
-- @refuse not_found

local refusal = record.open_all(q, redis.call('HGET', q.meta, 'version') or '')
if refusal then
  return reply.refuse(refusal)
end
q.cursor, q.last_id = integrity.bounds(q, q.cursor, q.last_id)
local seqs, after, entries = integrity.page(q, arg.source, arg.after, tonumber(arg.limit))
local plan, faults, ready, size = integrity.plan(), {}, 0, 0
local contents = arg.source == 'log' or arg.source == 'detached'
for _, seq in ipairs(seqs) do
  local damage, bytes
  if contents and not log.is_seq(seq) then
    damage = 'foreign'
  elseif contents or not integrity.find(q, seq) then -- other messages are checked in their own part
    damage, bytes = integrity.check(q, seq, plan, entries[seq])
  end
  if damage then
    faults[#faults + 1], faults[#faults + 2] = seq, damage
  end
  if bytes then
    ready, size = ready + 1, size + bytes
  end
end
local due = sweep.next_due(q)
return reply.ok(q, after, integrity.fingerprint(q), due and string.format('%.0f', due) or '', q.cursor, q.last_id,
  #seqs, ready, size, faults)
