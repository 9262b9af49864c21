--- Count the ready messages that other options would let die at once. Nothing is changed.
--
-- Retention and limits both act from the head of the queue, so these messages are the first ones, in order: the expired
-- ones, then those over a limit. One call walks over a few hundred of them; `behind`, `after`, `expired`, `trimmed` and
-- `size` carry the walk on: the place in `requeued`, the place in the log, and the counts with their body bytes.
--
-- @use    clock record log fetch budget reply ready
-- @keys   meta log detached leases requeued delayed
-- @args   version now message_ttl max_length max_length_bytes behind after expired trimmed size
-- @reply  more behind after expired trimmed size
-- @refuse not_found stale queue_expired

local now, after = clock.now(arg.now), arg.after
local refusal, record = record.open(q, arg.version, now, 'cursor', 'large_upto')
if refusal then
  return reply.refuse(refusal)
end
local ttl, most, most_bytes = tonumber(arg.message_ttl), tonumber(arg.max_length), tonumber(arg.max_length_bytes)
local behind, expired, trimmed, size = tonumber(arg.behind), tonumber(arg.expired), tonumber(arg.trimmed), tonumber(arg.size)
local ready, page = ready.count(q), 250
q.large_upto = budget.large_upto(record[8])

local ids = redis.call('ZRANGE', q.requeued, behind, behind + page - 1)
local entries, looked = fetch.read(q, ids)
local requeued, all = #entries, false
if looked == #ids and #ids < page then
  local ahead
  ahead, all = log.range(q, after == '' and record[7] or after, '+', page - #ids)
  log.join(entries, ahead)
end

local more = not all
for i, entry in ipairs(entries) do
  local id = entry[1]
  if ttl and string.sub(id, 1, 13) + ttl <= now then
    expired = expired + 1
  elseif most and ready - expired - trimmed > most or most_bytes and q.ready_bytes - size > most_bytes then
    trimmed = trimmed + 1
  else
    more = false
    break
  end
  size = size + #entry[2][2]
  if i > requeued then after = id end
end
return reply.ok(q, more and 1 or 0, behind + looked, after, expired, trimmed, string.format('%d', size))
