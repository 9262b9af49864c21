--- Remove ready messages: those of `ids`, or all that were there when the purge began; at most a few hundred at a time.
--
-- Leased, delayed and unknown messages are left alone. Nothing is dead-lettered. `ids` rise. If nothing is out, all go
-- at once.
--
-- @use     record ready stale reply purge
-- @keys    meta log detached expiry leases requeued delayed failures
-- @args    upto ids...
-- @reply   purged more upto: where the whole purge ends, or the last of the ids that was looked at
-- @refuse  not_found

local version = redis.call('HGET', q.meta, 'version')
local refusal = record.open_all(q, version or '')
if refusal then
  return reply.refuse(refusal)
end
local upto, purged, more = arg.upto ~= '' and arg.upto or q.last_id, 0, false
if arg.ids[1] then
  local chosen, last = purge.find(q, arg.ids)
  purged, more, upto = purge.remove(q, chosen, false), last ~= arg.ids[#arg.ids], last
elseif redis.call('ZCARD', q.leases) + redis.call('ZCARD', q.delayed) == 0 and upto >= q.last_id then
  purged = purge.clear(q)
else
  local entries, all = ready.read(q, 250)
  while #entries > 0 and entries[#entries][1] > upto do
    entries[#entries], all = nil, true
  end
  purged = purge.remove(q, entries, true)
  more = stale.forget(q) + purged > 0 and not all
end
if purged > 0 then record.count(q, 'purged', purged) end
record.save(q)
return reply.ok(q, purged, more and 1 or 0, upto)
