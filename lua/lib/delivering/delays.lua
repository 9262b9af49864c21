--- Delayed messages.
--
-- Where retention ends before the delay, `delayed` has the end of retention, and `failures` the end of the delay.
-- `message_ttl` may change meanwhile. So at the end of retention the message either dies or is delayed again.
--
-- @use message message_ttl failures record memory log
local delays = {}

--- Delay a message until `ends`, or until its own deadline if that is earlier: it expires then. Returns the end of the
-- delay if retention ends before it.
function delays.put(q, entry, ends)
  local seq, header = entry[1], entry[2][1]
  local own_deadline, deadline = message.deadline(header), message_ttl.deadline(q, seq, header)
  if own_deadline and own_deadline < ends then ends = own_deadline end
  local at = deadline and math.min(ends, deadline) or ends
  redis.call('ZADD', q.delayed, at, seq)
  record.schedule_sweep(q, at)
  return at < ends and ends or nil
end

--- Return whether a retention that became shorter may end before delays that began under other options.
function delays.are_uncapped(q)
  return q.message_ttl and q.retention_scan ~= 'done' and redis.call('ZCARD', q.delayed) > 0
end

--- Check about `most` delayed messages against retention. `retention_scan` is the position of the next check.
function delays.cap(q, most)
  memory.may_pass(q)
  local page = redis.call('ZSCAN', q.delayed, q.retention_scan == '' and '0' or q.retention_scan, 'COUNT', most)
  local seqs, ends = {}, {}
  for i = 1, #page[2], 2 do
    local seq, at = page[2][i], tonumber(page[2][i + 1])
    if log.ms(seq) + q.message_ttl < at then
      seqs[#seqs + 1], ends[seq] = seq, at
    end
  end
  local failed, descriptions, away = failures.read(q, seqs)
  for _, seq in ipairs(seqs) do
    redis.call('ZADD', q.delayed, log.ms(seq) + q.message_ttl, seq)
    local until_ms = math.max(away[seq] or 0, ends[seq])
    redis.call('HSET', q.failures, seq, failures.pack(failed[seq] or 0, descriptions[seq], until_ms))
  end
  q.retention_scan = page[1] ~= '0' and page[1] or 'done'
end
