--- Waking consumers that wait. `waiting` knows who waits and until when; the list `bell` holds at most one hint
-- (an empty string), and beside it the tickets of messages that were handed to waiting consumers.
--
-- @use queue
local wake = {}
local LATE = 1000
local RECHECK = 5000

--- Ring once if somebody waits.
function wake.ring(q, now)
  if q.attended == '1' then
    rare(wake).ring_once(q, now)
  end
end

--- A consumer may die between the bell and its look. So the queue is due `RECHECK` ms after each ring: the sweep rings
-- again if messages are still ready.
function wake.ring_once(q, now)
  if redis.call('ZCARD', q.waiting) == 0 then
    q.attended = '0'
  elseif redis.call('LLEN', q.bell) == 0 then
    redis.call('RPUSH', q.bell, '')
    queue.due_by(q, now + RECHECK)
  end
end

--- How many consumers wait who have not been woken yet.
function wake.free(q, now)
  return redis.call('ZCOUNT', q.waiting, string.format('(%.0f', now), '+inf') - redis.call('LLEN', q.bell)
end

--- Note whether a consumer waits (`block` ms from now) and for how long it counts as one (`stay` ms).
-- A negative `block` leaves open whether it waits, and never shortens `stay`. Who waits counts for a while longer: it is
-- about to look again. ZREM comes first: it is allowed when memory is full.
function wake.attend(q, now, consumer, block, stay)
  redis.call('ZREM', block < 0 and q.leases or q.waiting, consumer)
  if block > 0 then
    redis.call('ZADD', q.waiting, now + block, consumer)
    q.attended, stay = '1', math.max(block + LATE, stay)
  end
  if stay > 0 and block < 0 then
    redis.call('ZADD', q.consumers, 'GT', now + stay, consumer)
  elseif stay > 0 then
    redis.call('ZADD', q.consumers, now + stay, consumer)
  else
    redis.call('ZREM', q.consumers, consumer)
  end
end

--- Whoever was woken and leaves messages behind wakes the next one.
function wake.pass_on(q, now)
  if q.attended == '1' and queue.ready(q) > 0 then
    wake.ring(q, now)
  end
end
