--- Remove ready messages that were there when the purge began, at most a few hundred; all at once if nothing is out.
--
-- Leased and delayed messages stay. Nothing is dead-lettered.
--
-- @use     queue record ready reply
-- @keys    meta log loose expiry leases returned delayed redelivered
-- @args    upto
-- @reply   purged more upto
-- @refuse  not_found

local version = redis.call('HGET', q.meta, 'version')
local refusal = queue.open_all(q, version or '')
if refusal then
  return reply.refuse(refusal)
end
local upto, purged, more = arg.upto ~= '' and arg.upto or q.last, 0, 0
if redis.call('ZCARD', q.leases) + redis.call('ZCARD', q.delayed) == 0 and upto >= q.last then
  purged = queue.ready(q)
  redis.call('UNLINK', q.log, q.loose, q.expiry, q.returned, q.redelivered)
  q.cursor, q.bytes, q.holes = q.last, 0, 0
else
  local most, chosen, ids = queue.readable(q, 250), {}, {}
  local entries = ready.read(q, most)
  for _, entry in ipairs(entries) do
    if entry[1] <= upto then
      chosen[#chosen + 1], ids[#ids + 1] = entry, entry[1]
    end
  end
  ready.remove(q, chosen, true)
  if #ids > 0 then redis.call('HDEL', q.redelivered, unpack(ids)) end
  purged, more = #chosen, #chosen == most and 1 or 0
end
if purged > 0 then queue.count(q, 'purged', purged) end
record.save(q)
return reply.ok(q, purged, more, upto)
