--- Waking consumers that wait. `waiters` knows who waits and until when, and which messages are under way to them; the
-- list `wakeup` holds at most one hint (an empty string), and beside it the tickets of those messages.
--
-- @use record lease ready
local wakeup = {}
local LATE = 5000
local RECHECK = 5000
local PICKUP = 5000

--- Ring once if somebody waits.
function wakeup.ring(q, now)
  if q.has_waiters == '1' then
    lazy(wakeup).ring_once(q, now)
  end
end

--- A consumer may die between the wake-up and its look. So the queue is due `RECHECK` ms after each ring: the sweep rings
-- again if messages are still ready.
function wakeup.ring_once(q, now)
  if redis.call('ZCARD', q.waiters) == 0 then
    q.has_waiters = '0'
  elseif redis.call('LLEN', q.wakeup) == 0 then
    redis.call('RPUSH', q.wakeup, '')
    record.schedule_sweep(q, now + RECHECK)
  end
end

--- How many consumers wait to whom no ticket is under way, in the list or taken from it. Those who took a hint are among
-- them: what they were woken for is ready.
function wakeup.unwoken(q, now)
  if q.has_waiters ~= '1' then return 0 end
  return redis.call('ZCOUNT', q.waiters, string.format('(%d', now), '+inf')
    - redis.call('ZCOUNT', q.waiters, '-inf', string.format('(%d', -now))
end

--- Lease messages on behalf of consumers that wait, and put a ticket for each into the list. Until somebody shows it,
-- `waiters` holds the message by the negative end of that lease.
function wakeup.hand_off(q, now, ids)
  local ends, tickets, marks = now + PICKUP, {}, {}
  local token = lease.token(ends, q.lease_grants)
  for i, id in ipairs(ids) do
    tickets[i], marks[2 * i - 1], marks[2 * i] = id .. ' ' .. token, -ends, id
  end
  lease.grant(q, token, ids)
  q.lease_grants = q.lease_grants + 1
  record.schedule_sweep(q, ends)
  redis.call('RPUSH', q.wakeup, unpack(tickets))
  redis.call('ZADD', q.waiters, unpack(marks))
end

--- Note whether a consumer waits (`block` ms from now) and for how long it counts as one (`stay` ms).
-- A negative `block` leaves open whether it waits, and never shortens `stay`. Who waits counts for a while longer, until
-- it has looked again. `shown` are messages whose tickets it has shown: they are under way no more.
-- ZREM comes first: it is allowed when memory is full.
function wakeup.track_consumer(q, now, consumer, block, stay, shown)
  redis.call('ZREM', block < 0 and q.leases or q.waiters, consumer, unpack(shown))
  if block > 0 then
    redis.call('ZADD', q.waiters, now + block + LATE, consumer)
    q.has_waiters, stay = '1', math.max(block + LATE, stay)
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
function wakeup.ring_if_ready(q, now)
  if q.has_waiters == '1' and ready.count(q) > 0 then
    wakeup.ring(q, now)
  end
end
