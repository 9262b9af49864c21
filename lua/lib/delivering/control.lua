--- Control of claims: a queue may be `paused`, have at most `max_leased` messages out, or give at most `rate` messages.
--
-- While nobody may claim, `has_waiters` is 2: then no arriving message rings, and none is handed to a consumer. What
-- lets claims begin again makes it 1, and rings: a sweep, a settlement, or the consumer that has the turn.
--
-- The rate is a GCRA, exact in whole numbers. `rate_next` is its theoretical arrival time: ms, and a rest in 1/n ms for
-- `n` messages in `per` ms. So in any t ms at most n * t / per + burst messages leave. Of the consumers that wait for
-- the rate, one has the turn (`rate_turn`: its name, and the ms at which it looks); all others wait for a ring.
local control = {}
local REST = 5000
local LATE = 5000

--- Take the options that control claims. Without a `burst` the queue may give the messages of one second at once.
function control.take(q, paused, max_leased, rate, burst)
  q.controlled, q.paused, q.max_leased = true, paused, tonumber(max_leased)
  if not rate then return end
  local n, per = string.match(rate, '^(%d+)/(%d+)$')
  q.rate, q.per = tonumber(n), tonumber(per)
  q.burst = tonumber(burst) or math.max(1, math.floor(q.rate * 1000 / q.per))
end

--- Return whether consumers wait for a place that settlements free, for commands that read nothing else of the record.
function control.is_full(q)
  local waits, max_leased = unpack(redis.call('HMGET', q.meta, 'has_waiters', 'max_leased'))
  return waits == '2' and max_leased
end

--- Read what a settlement needs to ring once there is a place. Returns whether a message may be ready.
function control.reopen(q, now)
  local due_at, paused, max_leased, rate, burst = unpack(redis.call('HMGET', q.meta, 'due_at', 'paused', 'max_leased',
    'rate', 'burst'))
  control.take(q, paused, max_leased, rate, burst)
  q.due_at, q.has_waiters = tonumber(due_at), '2'
  control.gate(q, now)
  return redis.call('XLEN', q.log) + redis.call('HLEN', q.detached) > redis.call('ZCARD', q.leases)
end

--- Return whether as many messages are out as may be.
function control.has_no_place(q)
  return q.max_leased and redis.call('ZCARD', q.leases) >= q.max_leased
end

--- The number of messages that may leave now, at most `most`.
function control.room(q, now, most)
  if q.paused then return 0 end
  if q.max_leased then most = math.min(most, q.max_leased - redis.call('ZCARD', q.leases)) end
  if q.rate then most = math.min(most, q.burst - math.ceil(control.used(q, now) / q.per)) end
  return math.max(0, most)
end

--- The used part of the burst, in 1/n ms; a message takes `per`. A rate that was lower, or a clock that goes back, uses
-- no more than all of it (`is_beyond`).
function control.used(q, now)
  if not q.rate_ms then
    local at, turn = unpack(redis.call('HMGET', q.meta, 'rate_next', 'rate_turn'))
    local ms, rest = string.match(at or '', '^(%d+) (%d+)$')
    q.rate_ms, q.rate_rest = tonumber(ms) or 0, tonumber(rest) or 0
    q.turn, q.turn_at = string.match(turn or '', '^(%S+) (%d+)$')
    q.turn_at = tonumber(q.turn_at)
  end
  local used = (q.rate_ms - now) * q.rate + q.rate_rest
  q.is_beyond = used > q.burst * q.per
  return math.min(math.max(0, used), q.burst * q.per)
end

--- The ms at which the next message may leave by the rate.
function control.next_at(q, now)
  return now + math.max(0, math.ceil((control.used(q, now) - (q.burst - 1) * q.per) / q.rate))
end

--- Charge the rate for messages that leave. What `used` has cut is stored: else no look would come nearer to the next
-- message.
function control.charge(q, now, n)
  local used = control.used(q, now) + n * q.per
  if n == 0 and not q.is_beyond then return end
  q.rate_rest = used % q.rate
  q.rate_ms = now + (used - q.rate_rest) / q.rate
  redis.call('HSET', q.meta, 'rate_next', string.format('%.0f %.0f', q.rate_ms, q.rate_rest))
end

--- Return whether a consumer has the turn. One that is late by more than `LATE` ms is dead, and one that would look too
-- late began to wait under another rate.
function control.has_turn(q, now)
  local at = control.next_at(q, now)
  return q.turn and q.turn_at <= at and now < q.turn_at + LATE
end

--- End the turn of a dead consumer. Returns when the present one would be late.
function control.recheck(q, now)
  if control.has_turn(q, now) then return q.turn_at + LATE end
  if q.turn then redis.call('HDEL', q.meta, 'rate_turn') end
  q.turn = nil
end

--- Note whether consumers that wait may claim (1) or not (2). Where only the rate is in the way, and nobody has the
-- turn, one of them has to come for it.
function control.gate(q, now)
  if q.has_waiters == '0' then return end
  local closed = q.paused or control.has_no_place(q)
    or q.rate and control.next_at(q, now) > now and control.has_turn(q, now)
  q.has_waiters = closed and '2' or '1'
end

--- The end of a look of a consumer, which may wait now: charge for `n` messages, give it the turn or take it away.
-- Returns when to look again, until which it counts as waiting: never while only a ring can help, and in a pause for
-- upkeep alone.
function control.look(q, now, n, consumer, block)
  if q.rate then control.charge(q, now, n) end
  local at = q.rate and control.next_at(q, now) or now
  local others = q.rate and control.has_turn(q, now) and q.turn ~= consumer
  local due = q.due_at
  if q.paused then
    due = due and math.max(due, now + REST)
  elseif control.has_no_place(q) then
    due = math.floor(redis.call('ZRANGE', q.leases, 0, 0, 'WITHSCORES')[2] / 1000)
  elseif at > now then
    due = (block <= 0 or not others) and at or nil
    if block > 0 and not others then
      q.turn, q.turn_at, others = consumer, at, true
      redis.call('HSET', q.meta, 'rate_turn', string.format('%s %.0f', consumer, at))
      if not q.due_at or at + LATE < q.due_at then q.due_at, q.hint = at + LATE, true end
    end
  end
  if q.turn == consumer and not others and block >= 0 then
    redis.call('HDEL', q.meta, 'rate_turn')
    q.turn = nil
  end
  if block > 0 and due and due < now + block then redis.call('ZADD', q.waiters, math.max(now, due) + LATE, consumer) end
  control.gate(q, now)
  return due
end
