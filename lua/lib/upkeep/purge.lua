--- Purging: removing ready messages for good. They count as purged; nothing is dead-lettered.
--
-- @use fetch ready log
local purge = {}

--- The ready ones among `seqs` in the same order, within the budget; the last sequence looked at; and by sequence those
-- without a message. Messages in another state are left out.
function purge.find(q, seqs)
  local away, candidates, missing = {}, {}, {}
  for state in each('states') do
    for i, score in ipairs(redis.call('ZMSCORE', q[state.part], unpack(seqs))) do
      away[i] = away[i] or score
    end
  end
  for i, seq in ipairs(seqs) do
    if not away[i] then candidates[#candidates + 1] = seq end
  end
  local entries, looked, absent = fetch.read(q, candidates)
  for _, seq in ipairs(absent) do
    missing[seq] = true
  end
  return entries, looked < #candidates and candidates[looked] or seqs[#seqs], missing
end

--- Take ready messages out, with their failures. Returns their number.
function purge.take(q, entries, from_head)
  local seqs = log.seqs(entries)
  ready.remove(q, entries, from_head)
  if #seqs > 0 then
    redis.call('HDEL', q.failures, unpack(seqs))
  end
  return #seqs
end

--- Remove ready messages and record the loss. `from_head`: they are the next ones in order. Returns their number.
function purge.remove(q, entries, from_head)
  ready.record_loss(q, entries)
  return purge.take(q, entries, from_head)
end

--- Remove all ready messages of a queue that has no others. Returns their number.
function purge.clear(q)
  local purged, back = ready.count(q), redis.call('ZRANGE', q.requeued, -1, -1)
  ready.record_loss(q, redis.call('XREVRANGE', q.log, '+', '-', 'COUNT', 1))
  if back[1] then ready.record_loss(q, {back}) end
  redis.call('UNLINK', q.log, q.detached, q.expiry, q.requeued, q.failures, q.arrivals)
  q.cursor, q.ready_bytes = q.last_id, 0
  return purged
end
