--- Look for damage: is each message of a page in its one place, and what should the record say? Nothing is changed.
--
-- `source` is the part whose ids are looked at, `after` is empty or the `next` of the page before. `due`, `cursor` and
-- `last` are as they should be (`due`: at the latest), `record` is all that is there.
--
-- @use    record sweep integrity reply
-- @keys   meta log detached expiry leases requeued delayed failures
-- @args   source after limit
-- @reply  next record due cursor last seen ready bytes faults: faults are ids and words in turn
-- @refuse not_found

local refusal = record.open_all(q, redis.call('HGET', q.meta, 'version') or '')
if refusal then
  return reply.refuse(refusal)
end
q.cursor, q.last_id = integrity.bounds(q, q.cursor, q.last_id)
local ids, after, entries = integrity.page(q, arg.source, arg.after, tonumber(arg.limit))
local plan, faults, ready, size = integrity.plan(), {}, 0, 0
local contents = arg.source == 'log' or arg.source == 'detached'
for _, id in ipairs(ids) do
  local wrong, bytes
  if contents and not integrity.is_seq(id) then
    wrong = 'foreign'
  elseif contents or not integrity.find(q, id) then -- the others are judged where they are
    wrong, bytes = integrity.check(q, id, plan, entries[id])
  end
  if wrong then
    faults[#faults + 1], faults[#faults + 2] = id, wrong
  end
  if bytes then
    ready, size = ready + 1, size + bytes
  end
end
local due = sweep.next_due(q)
return reply.ok(q, after, integrity.fingerprint(q), due and string.format('%.0f', due) or '', q.cursor, q.last_id, #ids, ready, size,
  faults)
