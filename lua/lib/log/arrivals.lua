--- The index of arrivals of a dead-letter queue: a mark for about every 1,024th arrival, with the numbers and bytes of
-- arrivals up to it.
--
-- Readers of the log find a place by its number or by its time, and read none of the messages before it. A dead letter
-- that left the queue keeps its number. So the numbers of two marks differ by the most that can lie between them.
-- Bytes count dead letters only, because an enqueue has no time for them. Between marks whose numbers of arrivals and
-- of dead letters differ equally, no sender has enqueued.
-- Each mark is right by itself: a reader needs no other one, and a missing mark harms nothing.
--
-- @use log
local arrivals = {}
local BUDGET = 250

--- Mark the last message of a target, whose record counts it already.
function arrivals.mark(into)
  arrivals.trim(into.arrivals, into.log)
  redis.call('ZADD', into.arrivals, log.ms_digits(into.last_id),
    into.last_id .. string.format(' %d %d %d', into.enqueued, into.letters, into.letter_bytes))
end

--- Remove up to 250 marks of an index before the first message of its log, but not the newest of these: it tells the
-- number of the first message, at most one step too low. A key of another type answers with an error, and goes.
function arrivals.trim(index, messages)
  local first = redis.call('XRANGE', messages, '-', '+', 'COUNT', 1)[1]
  local upto = first and '(' .. log.ms_digits(first[1]) or '+inf'
  local old = redis.pcall('ZRANGEBYSCORE', index, '-inf', upto, 'LIMIT', 0, BUDGET + 1)
  if old.err then
    redis.call('UNLINK', index)
  elseif #old > 1 then
    redis.call('ZREM', index, unpack(old, 1, #old - 1))
  end
end
