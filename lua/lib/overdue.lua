--- Which messages are over first, where own deadlines, retention and delays meet: a merge of three orders.
--
-- @use candidates
local overdue = {}

--- What `expiry.overdue` gives. `due` are ids of the set `expiry`, each with its score; `back` are delayed ids that are
-- due. Of these the dead are found by their headers.
function overdue.merge(q, now, most, due, back)
  local found = {at = {}, entry = {}, ids = {}, kept = {}, away = {}, full = #due == 2 * most, cut = #back == 2 * most}
  candidates.retained(q, most, found, #due == 2 * most and tonumber(due[#due]) or now)
  candidates.indexed(q, found, due)
  candidates.delayed(q, now, found, back)
  local at, ids, chosen = found.at, found.ids, {}
  table.sort(ids, function(a, b) return at[a] < at[b] or at[a] == at[b] and a < b end)
  local dead = {all = {}, kept = {dense = found.kept.dense}, own = {}, away = {}, full = found.full or #ids > most}
  for _, id in ipairs(ids) do
    local late = found.limit and at[id] > found.limit and #dead.all > 0
    if #dead.all == most or not found.entry[id] or late then
      dead.full = true
      break
    end
    dead.all[#dead.all + 1], chosen[id] = found.entry[id], true
  end
  overdue.part(dead, found, chosen)
  return dead
end

--- Where the chosen ones are: the first of those that head the queue, ready anywhere, or delayed.
function overdue.part(dead, found, chosen)
  local heads = {}
  for _, entry in ipairs(found.kept) do
    if not chosen[entry[1]] then break end
    dead.kept[#dead.kept + 1], heads[entry[1]] = entry, true
  end
  for _, entry in ipairs(dead.all) do
    local into = found.away[entry[1]] and dead.away or dead.own
    if not heads[entry[1]] then into[#into + 1] = entry end
  end
end
