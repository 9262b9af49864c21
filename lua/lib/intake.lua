--- What follows from messages that arrive, once it is decided what becomes of each, and they are stored.
--
-- @use queue admit wake lapse record
local intake = {}

--- `before` is how many had been enqueued so far. Without a plan nothing has to make room.
function intake.finish(q, now, items, plan, before)
  if items.count > 0 then
    q.bytes = q.bytes + items.size
    if q.message_ttl then queue.due_by(q, now + q.message_ttl) end
  end
  local refused = plan and rare(admit).finish(q, now, plan, items) or 0
  if items.count > 0 then wake.ring(q) end
  if q.life then rare(lapse).stir(q, now) end
  local enqueued = string.format('%d', before + items.n - refused)
  if plan then
    q.was.enqueued, q.enqueued = '', enqueued
    rare(record).save(q)
  else
    record.save_arrivals(q, enqueued)
  end
end
