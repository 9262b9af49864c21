--- Remove ready messages: those of `seqs`, or all since the purge began; at most a few hundred in one call.
--
-- Messages in another state stay, and so do unknown ones. Nothing is dead-lettered. `seqs` rise. If all messages are
-- ready, all go at once. The choice of messages is a decision about each of them, like an ack, so it is no loss;
-- `unread` makes it one.
--
-- @use     record ready stale reply purge states arrivals
-- @keys    meta log detached arrivals expiry requeued states failures
-- @args    upto unread seqs...
-- @reply   purged more upto: the end of the whole purge, or the last of `seqs` that was looked at
-- @refuse  not_found

local version = redis.call('HGET', q.meta, 'version')
local refusal = record.open_all(q, version or '')
if refusal then
  return reply.refuse(refusal)
end
local upto, more = arg.upto ~= '' and arg.upto or q.last_id, false
local purged
if arg.seqs[1] then
  local entries, last = purge.find(q, arg.seqs)
  if arg.unread ~= '' then ready.record_loss(q, entries) end
  purged, more, upto = purge.take(q, entries, false), last ~= arg.seqs[#arg.seqs], last
elseif states.count_away(q) == 0 and upto >= q.last_id then
  purged = purge.clear(q)
else
  local entries, all = ready.read(q, 250)
  while #entries > 0 and entries[#entries][1] > upto do
    entries[#entries], all = nil, true
  end
  purged = purge.remove(q, entries, true)
  more = stale.forget(q) + purged > 0 and not all
end
if purged > 0 then
  record.count(q, 'purged', purged)
  arrivals.trim(q.arrivals, q.log)
end
record.save(q)
return reply.ok(q, purged, more and 1 or 0, upto)
