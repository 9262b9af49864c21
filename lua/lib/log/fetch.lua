--- Reading messages by their ids, as far as the budget goes.
--
-- @use log budget
local fetch = {}

--- The entries of these ids, in their order; how many ids were looked at; and those of them that no message has. `dense`
-- says that all entries are neighbours.
function fetch.read(q, ids)
  local entries, gone, at = {}, {}, 0
  while at < #ids and budget.is_open() do
    local last = fetch.reach(q, ids, at + 1)
    local some, same = fetch.between(q, ids, at + 1, last)
    if same and last - at == #ids then
      some.dense = true
      return some, #ids, gone
    end
    at = lazy(fetch).pick(q, ids, at + 1, last, some, entries, gone)
  end
  return entries, at, gone
end

--- Up to which number the ids from number `first` on may be read at once.
function fetch.reach(q, ids, first)
  local large = q.large_upto and ids[first] <= q.large_upto
  local last = first + budget.page_size(q, large, #ids - first + 1) - 1
  for i = first + 1, q.large_upto and last or 0 do
    if (ids[i] <= q.large_upto) ~= large then return i - 1 end
  end
  return last
end

--- As many entries as there are ids, from the lowest id to the highest; and whether they are those of the ids.
function fetch.between(q, ids, first, last)
  local low, high = ids[first], ids[first]
  for i = first + 1, last do
    if ids[i] < low then low = ids[i] elseif ids[i] > high then high = ids[i] end
  end
  if not (log.is_seq(low) and log.is_seq(high)) then return {}, false end
  local some = redis.call('XRANGE', q.log, low, high, 'COUNT', last - first + 1)
  budget.spend(some)
  local same = #some == last - first + 1
  for i = 1, #some do
    same = same and some[i][1] == ids[first + i - 1]
  end
  return some, same
end

--- Put what is there of these ids into `entries`, and the others into `gone`. Returns how far the budget went: beyond
-- the first of all ids in any case.
function fetch.pick(q, ids, first, last, some, entries, gone)
  local known = {}
  for _, entry in ipairs(some) do
    known[entry[1]] = entry
  end
  for i = first, last do
    local id = ids[i]
    local entry = known[id]
    if not entry and i > 1 and not budget.is_open() then return i - 1 end
    entry = entry or log.is_seq(id) and log.find(q, id)
    if entry then entries[#entries + 1] = entry else gone[#gone + 1] = id end
  end
  return last
end
