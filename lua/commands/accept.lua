--- Store a page of dead letters from a queue in another slot, once.
--
-- The target remembers number and token of the last page of each source. Ids and numbers of a source may go back, when
-- its server fails over and loses writes; its tokens never come again.
--
-- @use    clock dead_letter append reaper_hint reply
-- @keys   meta log detached arrivals wakeup waiters tombstone sender
-- @args   now number token letters...
-- @reply  known: 1 if the queue had the page before
-- @refuse behind: followed by the number of the last page, if that of this page is not above it

local MEMORY = 604800000
local number, token = string.match(redis.call('GET', q.sender) or '0 -', '^(%d+) (%S+)$')
if token == arg.token then
  return reply.ok(q, 1)
elseif tonumber(arg.number) <= tonumber(number) then
  return reply.refuse('behind', number)
end
local now = clock.now(arg.now)
q.name = reaper_hint.queue_name(q.meta)
local mover = {}
dead_letter.open_target(mover, q, now)
append.all(q, now, arg.letters, 2, #arg.letters / 2)
-- not before: a log of a wrong type ends the call
redis.call('SET', q.sender, arg.number .. ' ' .. arg.token, 'PX', MEMORY)
dead_letter.close_target(mover, q, now, dead_letter.sizes(arg.letters))
return reply.ok(mover, 0)
