--- Do something to single messages, at most a few hundred: `delete` them, let them die of `expired` or `rejected`
-- whatever their TTLs, or `redeliver` delayed and scheduled ones now.
--
-- If one of them is leased, nothing is done. With `dry` nothing is done either. `description` is that of a death.
--
-- @use     clock record intervene reply
-- @keys    meta log detached expiry requeued states failures scheduled upcoming scheduled_ids scheduled_more dedup
-- @keys    wakeup waiters
-- @targets expired maxlen rejected
-- @args    version targets now what description dry seqs...
-- @reply   done looked leased ends: the number of messages, and of the sequences looked at; the sequence of a leased
-- @reply   message and the end of its lease in ms, or both empty
-- @refuse  not_found stale queue_expired

local now = clock.now(arg.now)
local refusal = record.open_all(q, arg.version, now)
if refusal then
  return reply.refuse(refusal)
end
local found = intervene.find(q, now, arg.seqs, arg.dry ~= '')
if found.leased then
  return reply.ok(q, 0, found.looked, found.leased, found.ends)
elseif arg.dry == '' and found.n > 0 then
  if arg.what == 'delete' then
    intervene.delete(q, found)
  elseif arg.what == 'redeliver' then
    intervene.redeliver(q, now, found)
  else
    intervene.bury(q, now, found, arg.what, arg.description)
  end
  record.save(q)
end
return reply.ok(q, found.n, found.looked, '', '')
