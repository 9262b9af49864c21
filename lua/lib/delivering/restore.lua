--- Bringing messages back from leases or delays, in steps that the budget allows.
--
-- @use requeue stale budget limits
local restore = {}

--- Take messages back from `source` (the leases or the delayed). `how` has `counted`: 1 if their delivery failed, else 0;
-- `description` of the failure, or empty; `delay` in ms where the caller gives one; `ran_out` for leases that ended.
-- With `wholly` all come back in this call, if need be into `delayed`, due at once, until there is room; else as many as
-- one call reads. Returns how many came back or died, and how many had to go for them.
function restore.run(q, now, source, ids, how)
  local at, moved, pushed, blocked = 0, 0, 0, false
  while at < #ids and not blocked do
    if how.wholly then budget.renew() end
    local some, looked = restore.read(q, source, {unpack(ids, at + 1)})
    if looked == 0 then break end
    if q.stale then lazy(stale).forget(q) end -- so that what is ready is counted right
    local came, gone, left = requeue.run(q, now, source, some, how)
    at, moved, pushed, blocked = at + looked, moved + came, pushed + gone, left
  end
  return moved, pushed
end

--- The first of these messages, and how many ids were looked at. Half of what one call may read is left to those that
-- have to make room.
function restore.read(q, source, ids)
  if not limits.drops_oldest(q) then return stale.read(q, source, ids) end
  lazy(budget).keep_half()
  local entries, looked = stale.read(q, source, ids)
  lazy(budget).release()
  return entries, looked
end
