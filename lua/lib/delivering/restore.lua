--- Taking messages back from leases or delays, in steps within the budget.
--
-- @use requeue stale budget limits
local restore = {}

--- Take messages back from `source`, a set of sequences. `mode` has `counted` (1 if the delivery failed, else 0), the
-- `description` of the failure or an empty text, the `delay` of the caller in ms, `ran_out` for ended leases, and
-- `promoted` for messages whose state has ended.
--
-- With `wholly` all come back in this call; those without room are delayed and due at once. Otherwise as many come back
-- as one call reads. Returns the number of messages that came back or died, the number dropped for them, and how many
-- of the first had expired.
function restore.run(q, now, source, seqs, mode)
  local at, moved, pushed, expired, blocked = 0, 0, 0, 0, false
  while at < #seqs and not blocked do
    if mode.wholly then budget.renew() end
    local entries, looked = restore.read(q, source, {unpack(seqs, at + 1)})
    if looked == 0 then break end
    if q.stale then lazy(stale).forget(q) end -- so that the count of ready messages is right
    local count, dropped, left, dead = requeue.run(q, now, source, entries, mode)
    at, moved, pushed, expired, blocked = at + looked, moved + count, pushed + dropped, expired + dead, left
  end
  return moved, pushed, expired
end

--- Read the first messages, and return the number of sequences looked at. Half of the budget stays for those that make
-- room.
function restore.read(q, source, seqs)
  if not limits.drops_oldest(q) then return stale.read(q, source, seqs) end
  lazy(budget).keep_half()
  local entries, looked = stale.read(q, source, seqs)
  lazy(budget).release()
  return entries, looked
end
