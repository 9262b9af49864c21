--- Waking waiting consumers.
--
-- The key `waiters` has the consumers that wait, and the messages on the way to them. The list `wakeup` has at most one
-- hint (an empty text), and the tickets of these messages. Only that of a queue that is deleted or forwards has more
-- hints.
--
-- @use record lease ready control reaper_hint reply
local wakeup = {}
local LATE = 5000
local NOTICE = 60000
local RECHECK = 5000
local PASSED = 2000
local HANDOFF_LEASE = 5000
local MOST = 1000

--- Ring once if a consumer waits. Where messages are passed on, the client is asked to: `call` gets the note.
function wakeup.ring(q, now, call)
  if q.passes_on then
    lazy(wakeup).ask_to_pass(q, now, call or q)
  elseif q.has_waiters == '1' then
    lazy(wakeup).ring_once(q, now)
  end
end

--- Ask the client to pass on what is ready. It may die before, so the queue is due `PASSED` ms later.
function wakeup.ask_to_pass(q, now, call)
  reply.note(call, 'pass', q.name or reaper_hint.queue_name(q.meta))
  record.schedule_sweep(q, now + PASSED)
end

--- A consumer may die after the wake-up. So the queue is due `RECHECK` ms after each ring, and the sweep rings again if
-- messages are still ready.
function wakeup.ring_once(q, now)
  if redis.call('ZCARD', q.waiters) == 0 then
    q.has_waiters = '0'
  elseif redis.call('LLEN', q.wakeup) == 0 then
    redis.call('RPUSH', q.wakeup, '')
    record.schedule_sweep(q, now + RECHECK)
  end
end

--- The number of waiting consumers that may claim, without a ticket on the way. Consumers that took a hint are among
-- them: the messages they were woken for are ready. A ticket with a later end than any has is from before a step back
-- of the clock.
function wakeup.unwoken(q, now)
  if q.has_waiters ~= '1' then return 0 end
  local n = wakeup.waiting(q, now)
    - redis.call('ZCOUNT', q.waiters, string.format('%d', -now - HANDOFF_LEASE), string.format('(%d', -now))
  return q.controlled and lazy(control).room(q, now, n) or n
end

--- The number of waiting consumers.
function wakeup.waiting(q, now)
  return redis.call('ZCOUNT', q.waiters, string.format('(%d', now), '+inf')
end

--- Ring once for each of `waiting` consumers of a deleted queue, `MOST` at most. Each one looks, and learns of the
-- deletion. A consumer on its way into its wait finds its hint in the list. Redis removes hints that nobody takes
-- after `NOTICE` ms.
function wakeup.dismiss(q, waiting)
  local hints = {}
  for i = 1, math.min(waiting, MOST) do hints[i] = '' end
  redis.call('RPUSH', q.wakeup, unpack(hints))
  redis.call('PEXPIRE', q.wakeup, NOTICE)
end

--- If the messages of the queue go on to others from now on: let all consumers that wait look, since nobody receives
-- any here, and ask the client to pass on what is ready.
function wakeup.send_away(q, now)
  if redis.call('HEXISTS', q.meta, 'passes_on') == 0 then return end
  reply.note(q, 'pass', reaper_hint.queue_name(q.meta))
  local waiting = wakeup.waiting(q, now)
  if waiting > 0 then wakeup.dismiss(q, waiting) end
  redis.call('ZREMRANGEBYSCORE', q.waiters, 0, '+inf')
end

--- Lease messages for waiting consumers and push a ticket for each. Until the ticket is shown, `waiters` has the
-- message with the negative end of this lease.
function wakeup.hand_off(q, now, seqs)
  local ends, tickets, marks = now + HANDOFF_LEASE, {}, {}
  local token = lease.token(ends, q.lease_grants)
  for i, seq in ipairs(seqs) do
    tickets[i], marks[2 * i - 1], marks[2 * i] = seq .. ' ' .. token, -ends, seq
  end
  lease.grant(q, token, seqs)
  q.lease_grants = q.lease_grants + 1
  if q.rate then lazy(control).charge(q, now, #seqs) end
  record.schedule_sweep(q, ends)
  redis.call('RPUSH', q.wakeup, unpack(tickets))
  redis.call('ZADD', q.waiters, unpack(marks))
end

--- Track a consumer: it waits for `block` ms from now, and counts as a consumer for `stay` ms. A negative `block`
-- leaves its wait open and never shortens `stay`. A waiting consumer counts a little longer, until it has looked again:
-- at the end of its wait, or when the queue is due. `shown_seqs` are messages whose tickets it showed. ZREM comes
-- first: Redis allows it without free memory. Returns whether the consumer has waited, and waits no more.
function wakeup.track_consumer(q, now, consumer, block, stay, shown_seqs)
  local waited = redis.call('ZREM', block < 0 and q.leases or q.waiters, consumer, unpack(shown_seqs)) > #shown_seqs
  if block > 0 then
    local looks = not q.controlled and q.due_at and math.min(now + block, math.max(now, q.due_at)) or now + block
    redis.call('ZADD', q.waiters, looks + LATE, consumer)
    q.has_waiters, stay = '1', math.max(block + LATE, stay)
  end
  if stay > 0 and block < 0 then
    redis.call('ZADD', q.consumers, 'GT', now + stay, consumer)
  elseif stay > 0 then
    redis.call('ZADD', q.consumers, now + stay, consumer)
  else
    redis.call('ZREM', q.consumers, consumer)
  end
  return waited and block == 0
end

--- Pass on the watch: of the consumers that wait one has to look when the queue is due. Where none does, one is rung:
-- it looks, and waits until then.
function wakeup.pass_watch(q, now)
  local due = string.format('%d', math.max(now, q.due_at) + LATE)
  if redis.call('ZCOUNT', q.waiters, '(' .. due, '+inf') > 0
    and redis.call('ZCOUNT', q.waiters, string.format('(%d', now), due) == 0 and redis.call('LLEN', q.wakeup) == 0 then
    redis.call('RPUSH', q.wakeup, '')
  end
end

--- Ring because settlements made a place under `max_leased`, for a command that reads nothing else of the record.
function wakeup.ring_for_place(q, now)
  local may_be_ready = lazy(control).reopen(q, now)
  if may_be_ready then wakeup.ring(q, now) end
  redis.call('HSET', q.meta, 'has_waiters', q.has_waiters)
  if q.hint then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', q.due_at))
    lazy(reaper_hint).send(q.meta, q.due_at)
  end
end

--- Wake the next consumer if the last one left messages.
function wakeup.ring_if_ready(q, now)
  if q.controlled then lazy(control).gate(q, now) end
  if q.has_waiters == '1' and ready.count(q) > 0 then
    wakeup.ring(q, now)
  end
end
