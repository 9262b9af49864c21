--- Candidates for expiry, from the three orders in which messages lie. The list has their sequences (`seqs`), and by
-- sequence the deadline in force (`at`) and the entry if it was read. Beyond `limit` other messages may come first.
--
-- @use message_ttl ready stale budget log
local candidates = {}

--- Add messages past retention: the head of the queue. Messages behind the last one read have later deadlines.
function candidates.retained(q, most, list, upto)
  if not q.message_ttl then return end
  budget.keep_half()
  local past_retention, all = ready.read(q, most, upto - q.message_ttl)
  budget.release()
  for _, entry in ipairs(past_retention) do
    candidates.add(list, entry[1], message_ttl.deadline(q, entry[1], entry[2][1]), entry)
  end
  list.past_retention = past_retention
  if not all then
    list.full = true
    list.limit = #past_retention > 0 and log.ms(past_retention[#past_retention][1]) + q.message_ttl
  end
end

--- Add messages past their own deadline. A message beyond the budget ends the list at its place.
function candidates.indexed(q, list, due)
  local seqs, score = {}, {}
  for i = 1, #due, 2 do
    if not list.at[due[i]] then seqs[#seqs + 1], score[due[i]] = due[i], tonumber(due[i + 1]) end
  end
  if not budget.is_open() then budget.renew() end
  local past_deadline, looked = stale.read(q, q.expiry, seqs)
  for _, entry in ipairs(past_deadline) do
    candidates.add(list, entry[1], message_ttl.deadline(q, entry[1], entry[2][1]), entry)
  end
  for i = looked + 1, #seqs do
    local retention_end = q.message_ttl and log.ms(seqs[i]) + q.message_ttl or score[seqs[i]]
    candidates.add(list, seqs[i], math.min(retention_end, score[seqs[i]]))
  end
end

--- Add messages whose state has ended, if others are overdue, too; alone they die as they come back. `back` are members
-- of the set of the state with their scores; `cut` says that more may follow. Reading live ones is in vain. The order
-- is not exact for dead ones behind more live ones than one call reads.
function candidates.promoted(q, now, list, set, back, cut)
  local seqs, any = {}, false
  if #list.seqs == 0 then return end
  for i = 1, #back, 2 do
    seqs[#seqs + 1] = back[i]
  end
  local entries, looked = stale.read(q, set, seqs)
  for _, entry in ipairs(entries) do
    if message_ttl.is_over(q, now, entry) then
      candidates.add(list, entry[1], message_ttl.deadline(q, entry[1], entry[2][1]), entry)
      list.away[entry[1]], any = true, true
    end
  end
  if any and (looked < #seqs or cut) then
    list.full = true
    list.limit = math.min(list.limit or math.huge, tonumber(back[2 * looked]))
  end
end

--- Add a candidate.
function candidates.add(list, seq, at, entry)
  list.seqs[#list.seqs + 1], list.at[seq], list.entry[seq] = seq, at, entry
end
