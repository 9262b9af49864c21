--- What becomes of messages that come back: who is dead, who waits on, who must go for the others. Nothing is written.
--
-- @use lifetime failures pause length squeeze
local fates = {}

--- The fate of each, in lists: `spent` is over the delivery limit, `expired` is over, `later` waits until `ends`, `back`
-- is ready again, by id. A failure counts when `counted`.
function fates.judge(q, now, source, entries, how)
  local ids, last, mixed = {}, '', false
  for i, entry in ipairs(entries) do
    ids[i] = entry[1]
  end
  local failed, said, away = failures.read(q, ids)
  local ends = source == q.delayed and away or pause.ends(q, now, ids, failed, how)
  local fate = {failed = failed, said = said, away = away, ends = ends, spent = {}, expired = {}, later = {}, back = {}}
  for _, entry in ipairs(entries) do
    local id = entry[1]
    local into = fate.back
    if how.counted == 1 and q.max_deliveries and (failed[id] or 0) + 1 >= q.max_deliveries then
      into = fate.spent
    elseif lifetime.is_over(q, now, entry) then
      into = fate.expired
    elseif ends[id] and ends[id] > now then
      into = fate.later
    end
    mixed = mixed or id < last
    into[#into + 1], last = entry, id
  end
  if #fate.expired > 1 then rare(lifetime).sort(q, fate.expired) end
  if mixed then table.sort(fate.back, function(a, b) return a[1] < b[1] end) end
  return fate
end

--- Who has to go so that all of `fate.back` can be ready: nobody, while the queue is `crowded` by messages whose time is
-- over. Those for whom there is no room stay where they are (`staying`); where all come back in one call, they leave it
-- for `delayed` (`aside`).
function fates.make_room(q, fate, how)
  fate.staying, fate.aside = {}, {}
  if not length.drops(q) then return {all = {}} end
  local room = rare(squeeze).room(q, fate.back, how.crowded)
  if not room.blocked then return room end
  fate[how.wholly and 'aside' or 'staying'] = {unpack(fate.back, room.blocked)}
  fate.back = {unpack(fate.back, 1, room.blocked - 1)}
  return room
end
