--- Remove ready messages: those of `ids`, or all that were there when the purge began; at most a few hundred at a time.
--
-- Leased, delayed and unknown messages are left alone. Nothing is dead-lettered. `ids` rise. If nothing is out, all go
-- at once.
--
-- @use     queue record ready purge reply
-- @keys    meta log loose expiry leases returned delayed redelivered
-- @args    upto ids...
-- @reply   purged more upto: where the whole purge ends, or the last of the ids that was looked at
-- @refuse  not_found

local version = redis.call('HGET', q.meta, 'version')
local refusal = queue.open_all(q, version or '')
if refusal then
  return reply.refuse(refusal)
end
local upto, purged, more = arg.upto ~= '' and arg.upto or q.last, 0, 0
if arg.ids[1] then
  local most = queue.readable(q, #arg.ids)
  purged = purge.remove(q, purge.find(q, {unpack(arg.ids, 1, most)}), false)
  upto, more = arg.ids[most], most < #arg.ids and 1 or 0
elseif redis.call('ZCARD', q.leases) + redis.call('ZCARD', q.delayed) == 0 and upto >= q.last then
  purged = purge.clear(q)
else
  local most = queue.readable(q, 250)
  local entries = ready.read(q, most)
  while #entries > 0 and entries[#entries][1] > upto do
    entries[#entries] = nil
  end
  purged = purge.remove(q, entries, true)
  more = purged == most and 1 or 0
end
if purged > 0 then queue.count(q, 'purged', purged) end
record.save(q)
return reply.ok(q, purged, more, upto)
