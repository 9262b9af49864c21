--- Store a page of dead letters from a queue in another slot, once.
--
-- @use    clock dead_letter append reaper_hint outbox reply
-- @keys   meta log detached arrivals wakeup waiters tombstone sender
-- @args   now number token letters...
-- @reply  known: 1 if the queue had the page before
-- @refuse behind: followed by the number of the last page, if that of this page is not above it

local known, last = outbox.recall(q.sender, arg.number, arg.token)
if known then
  local made_by_letters = redis.call('HGET', q.meta, 'explicit') == '0'
  -- the reply that said so may be lost
  if made_by_letters then reply.note(q, 'created', reaper_hint.queue_name(q.meta)) end
  return reply.ok(q, 1)
elseif last then
  return reply.refuse('behind', last)
end
local now = clock.now(arg.now)
q.name = reaper_hint.queue_name(q.meta)
local mover = {}
dead_letter.open_target(mover, q, now)
append.all(q, now, arg.letters, 2, #arg.letters / 2)
-- not before: a log of a wrong type ends the call
outbox.remember(q.sender, arg.number, arg.token, '')
dead_letter.close_target(mover, q, now, dead_letter.sizes(arg.letters))
return reply.ok(mover, 0)
