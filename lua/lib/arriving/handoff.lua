--- Hand-offs: messages that go to waiting consumers before a TTL of 0 or a limit removes them, the oldest first.
--
-- A ticket tells the consumer which message was handed to it. The message is leased until the consumer shows the
-- ticket.
--
-- @use wakeup append take lease log memory message_ttl
local handoff = {}
local BUDGET = 250

--- Choose the messages for `free` waiting consumers. Returns the position of the last arriving message among them, and
-- the number of ready messages before it. Under a limit (`pressed`) all consumers get messages; otherwise none after
-- the last message with a TTL of 0. Duplicates and messages that expired before they arrived go to no consumer.
-- A scheduled message with a TTL of 0 has not expired even if it arrives late: a consumer that waits gets it.
function handoff.choose(free, ready, items, pressed)
  local left, last = free - ready, 0
  for i = 2, 2 * items.n, 2 do
    local nobodys = items.outcome[i] == 'late' or items.outcome[i] == 'duplicate'
    left = nobodys and left or left - 1
    if left < 0 then break end
    if items.outcome[i] == 'dead' or pressed and not nobodys then last = i end
  end
  return last, (pressed or last > 0) and math.max(0, math.min(free, ready)) or 0
end

--- Give the arriving messages up to position `last` the outcome `handed`.
function handoff.mark(items, last)
  for i = 2, last, 2 do
    if not items.outcome[i] then
      items.count, items.size = items.count - 1, items.size - #items.words[i]
    end
    if items.outcome[i] ~= 'late' and items.outcome[i] ~= 'duplicate' then items.outcome[i] = 'handed' end
  end
end

--- Decide which messages go to waiting consumers, and put older ones into the plan. It asks for a `retry` if overdue
-- ones must go first, or if one call cannot read all of them. Nothing is written here.
function handoff.decide(q, now, plan, items, ready, pressed)
  local last, n = handoff.choose(wakeup.unwoken(q, now), ready, items, pressed)
  if n > 0 and plan.dead and #plan.dead.past_retention + #plan.dead.past_deadline > 0 then
    plan.retry = true
    return
  elseif n > 0 then
    local older = {taken = {}, seqs = {}, with_header = {}, expired = {}, size = 0, older = true}
    lazy(take).choose(q, now, math.min(n, BUDGET), older)
    plan.older, plan.retry = older, #older.seqs < n and #older.seqs + #older.expired > 0
    if #older.seqs < n then last = 0 end -- no message overtakes an unread one
  end
  handoff.mark(items, last)
end

--- Give ready messages to waiting consumers.
function handoff.give_oldest(q, now, state)
  memory.must_ask(q)
  take.apply(q, now, state)
  if #state.seqs > 0 then wakeup.hand_off(q, now, state.seqs) end
end

--- Give an arriving message to a waiting consumer. No message is ready, so the cursor may pass it.
function handoff.give(q, now, header, body)
  local seq = append.one(q, now, header, body)
  q.cursor = seq
  wakeup.hand_off(q, now, {seq})
  return seq
end

--- Accept a ticket: if its lease still holds, its message belongs to the caller. It is `unwanted` in a paused queue,
-- for a caller that `leaves`, and if its deadline has passed on the way, unless it had a TTL of 0: that one was over
-- when it was handed out.
function handoff.accept(q, now, ticket, state, leaves)
  local seq, token = string.match(ticket, '^(%S+) (%S+)$')
  if not seq or not lease.held(q, now, {token, 1, seq}, '')[1] then return end
  local entry = log.find(q, seq)
  local deadline = entry and message_ttl.deadline(q, seq, entry[2][1])
  if leaves or q.paused or deadline and now >= deadline and deadline > log.ms(seq) then
    state.unwanted = state.unwanted or {}
    state.unwanted[#state.unwanted + 1] = seq
    return
  end
  state.taken[#state.taken + 1], state.seqs[#state.seqs + 1] = entry, seq
  state.handed = {seq}
end

--- Claim the ticket of a consumer that stops waiting: a message may have been handed to it after its last look. Hints
-- and tickets that ended may come before it in the list. Tickets beyond those for the consumers that still wait are
-- nobody's.
function handoff.claim(q, now, most, consumer, state)
  for _ = 1, 10 do
    local ticket = #state.taken < most and not state.handed and redis.call('LPOP', q.wakeup)
    if not ticket then break end
    handoff.accept(q, now, ticket, state)
  end
  local hints = redis.call('LINDEX', q.wakeup, 0) == '' and 1 or 0 -- it is pushed into an empty list only
  local own = tonumber(redis.call('ZSCORE', q.waiters, consumer) or 0)
  local others = wakeup.waiting(q, now) - (own > now and 1 or 0)
  for _ = 1, math.min(10, redis.call('LLEN', q.wakeup) - hints - others) do
    handoff.accept(q, now, redis.call('RPOP', q.wakeup), state, true)
  end
end
