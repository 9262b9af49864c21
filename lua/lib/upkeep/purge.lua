--- Purging: ready messages go for good, counted as purged; nothing is dead-lettered.
--
-- @use fetch ready
local purge = {}

--- Those of these messages that are ready, in the order of `ids`, as far as the budget goes; the last id that was looked
-- at; and by id those that are not there. Leased and delayed ones are left out.
function purge.find(q, ids)
  local leased, delayed = redis.call('ZMSCORE', q.leases, unpack(ids)), redis.call('ZMSCORE', q.delayed, unpack(ids))
  local there, missing = {}, {}
  for i, id in ipairs(ids) do
    if not leased[i] and not delayed[i] then there[#there + 1] = id end
  end
  local entries, looked, gone = fetch.read(q, there)
  for _, id in ipairs(gone) do
    missing[id] = true
  end
  return entries, looked < #there and there[looked] or ids[#ids], missing
end

--- Take ready messages out, with what is known of failed deliveries. Returns how many.
function purge.take(q, entries, in_order)
  local ids = {}
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  ready.remove(q, entries, in_order)
  if #ids > 0 then
    redis.call('HDEL', q.failures, unpack(ids))
  end
  return #ids
end

--- Remove these ready messages. `in_order`: they are the next ones. Returns how many.
function purge.remove(q, entries, in_order)
  ready.record_loss(q, entries)
  return purge.take(q, entries, in_order)
end

--- Remove all ready messages where nothing else is there. Returns how many.
function purge.clear(q)
  local purged, back = ready.count(q), redis.call('ZRANGE', q.requeued, -1, -1)
  ready.record_loss(q, redis.call('XREVRANGE', q.log, '+', '-', 'COUNT', 1))
  if back[1] then ready.record_loss(q, {back}) end
  redis.call('UNLINK', q.log, q.detached, q.expiry, q.requeued, q.failures)
  q.cursor, q.ready_bytes = q.last_id, 0
  return purged
end
