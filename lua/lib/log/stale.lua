--- Stale sequences: a set of the queue holds them, but they have no message. The call that reads them removes them.
--
-- @use fetch
local stale = {}

--- Read the messages of `seqs` in a set. Returns the entries and the number of sequences that it looked at. Stale ones
-- are noted.
function stale.read(q, set, seqs)
  local entries, looked, missing = fetch.read(q, seqs)
  if #missing > 0 then
    q.stale = q.stale or {}
    q.stale[#q.stale + 1] = {set, missing}
  end
  return entries, looked
end

--- Remove the noted sequences from their sets. Returns the number of stale sequences in this call so far.
function stale.forget(q)
  local count, noted = q.forgotten or 0, q.stale or {}
  q.stale = nil
  for _, pair in ipairs(noted) do
    redis.call('ZREM', pair[1], unpack(pair[2]))
    count = count + #pair[2]
  end
  q.forgotten = count
  return count
end
