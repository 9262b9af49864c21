--- Count the messages that would die at once under other options: ready and delayed ones. Nothing is changed.
--
-- Retention and limits act from the head of the queue, so the ready ones are the first ones: expired ones, then those
-- over a limit. One call walks over a few hundred messages. `behind`, `after`, `expired`, `trimmed` and
-- `size` continue the walk: the position in `requeued`, the position in the log, and the counts with the bytes of their
-- bodies. The walk ends with delayed messages: then `delayed` is the position among them, not empty.
--
-- @use    clock record log fetch budget reply ready
-- @keys   meta log detached requeued states
-- @args   version now message_ttl max_length max_length_bytes behind after expired trimmed size delayed
-- @reply  more behind after expired trimmed size delayed
-- @refuse not_found stale queue_expired

local now, after = clock.now(arg.now), arg.after
local refusal, cursor, large_upto = record.open(q, arg.version, now, 'cursor', 'large_upto')
if refusal then
  return reply.refuse(refusal)
end
local ttl, most, most_bytes = tonumber(arg.message_ttl), tonumber(arg.max_length), tonumber(arg.max_length_bytes)
local behind, expired = tonumber(arg.behind), tonumber(arg.expired)
local trimmed, size = tonumber(arg.trimmed), tonumber(arg.size)
local count, page, delayed, more = ready.count(q), 250, tonumber(arg.delayed), false
q.large_upto = budget.large_upto(large_upto)

if not delayed then
  local seqs = redis.call('ZRANGE', q.requeued, behind, behind + page - 1)
  local entries, looked = fetch.read(q, seqs)
  local requeued, all = #entries, false
  if looked == #seqs and #seqs < page then
    local ahead
    ahead, all = log.range(q, after == '' and cursor or after, '+', page - #seqs)
    log.join(entries, ahead)
  end
  behind, more = behind + looked, not all
  for i, entry in ipairs(entries) do
    local seq = entry[1]
    if ttl and log.ms(seq) + ttl <= now then
      expired = expired + 1
    elseif most and count - expired - trimmed > most or most_bytes and q.ready_bytes - size > most_bytes then
      trimmed = trimmed + 1
    else
      more = false
      break
    end
    size = size + #entry[2][2]
    if i > requeued then after = seq end
  end
  delayed = not more and 0 or nil
end
if ttl and delayed then
  local seqs = redis.call('ZRANGE', q.delayed, delayed, delayed + page - 1)
  for _, seq in ipairs(seqs) do
    if log.ms(seq) + ttl <= now then expired = expired + 1 end
  end
  delayed, more = delayed + #seqs, #seqs == page
end
return reply.ok(q, more and 1 or 0, behind, after, expired, trimmed, string.format('%d', size), delayed or '')
