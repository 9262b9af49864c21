--- Ids in a set of the queue that no message has. What reads by such ids takes them out, so that nobody meets them again.
--
-- @use fetch
local stale = {}

--- The entries of these ids of a set, and how many ids were looked at. Ids without a message are noted.
function stale.read(q, set, ids)
  local entries, looked, gone = fetch.read(q, ids)
  if #gone > 0 then
    q.stale = q.stale or {}
    q.stale[#q.stale + 1] = {set, gone}
  end
  return entries, looked
end

--- Take the noted ids out of their sets. Returns how many there have been in this call.
function stale.forget(q)
  local count, noted = q.forgotten or 0, q.stale or {}
  q.stale = nil
  for _, one in ipairs(noted) do
    redis.call('ZREM', one[1], unpack(one[2]))
    count = count + #one[2]
  end
  q.forgotten = count
  return count
end
