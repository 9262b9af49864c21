--- What follows from messages that arrived where room had to be made, or is to be kept.
--
-- @use queue admit wake lapse record
local intake = {}

--- `most` is how many will have been enqueued so far if none was refused.
function intake.finish(q, now, items, plan, most)
  if items.count > 0 then
    q.ready_bytes = q.ready_bytes + items.size
    if q.message_ttl then queue.due_by(q, now + q.message_ttl) end
  end
  local refused = admit.finish(q, now, plan, items)
  if items.count > 0 then wake.ring(q, now) end
  if q.life then lapse.stir(q, now) end
  q.was.enqueued, q.enqueued = '', string.format('%d', most - refused)
  record.save(q)
end
